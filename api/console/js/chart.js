// uPlot as a component: it follows its width and the theme, and takes new data without a new chart.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.js";
import { number } from "./format.js";
import { colours, onTheme } from "./theme.js";

/** Distances of ticks where there is nothing between whole numbers. */
export const WHOLE_STEPS = [1, 2, 5].flatMap((_, place, steps) => [0, 1, 2, 3, 4, 5].map((power) => steps[place] * 10 ** power)).sort((a, b) => a - b);

export function useColours() {
  const [found, setFound] = useState(colours());
  useEffect(() => onTheme(() => setFound(colours())), []);
  return found;
}

/**
 * @param {object} props
 * @param {string} props.shape what the options depend on; another one makes the chart anew
 * @param {(colours: object) => object} props.options of uPlot, without its size
 * @param {any[][]} props.data
 * @param {string} props.label what the picture shows, in words
 * @param {(series: number|null, index: number|null) => void=} props.onPoint what the pointer is near
 * @param {(series: number|null, index: number|null) => void=} props.onPick what was clicked
 */
export function Chart({ shape, options, data, label, height = 260, onPoint, onPick }) {
  const place = useRef();
  const plot = useRef(null);
  const heard = useRef({});
  heard.current = { onPoint, onPick };
  const found = useColours();
  useLayoutEffect(() => {
    const made = new globalThis.uPlot(
      { width: place.current.clientWidth, height, ...shared(heard, found), ...withAxes(options(found), found) },
      data,
      place.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height }));
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, found, height]);
  useLayoutEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>`;
}

function shared(heard, found) {
  let near = [null, null];
  return {
    legend: { show: false },
    padding: [10, 12, 0, 0],
    cursor: {
      y: false,
      points: { size: 7, fill: found.surface },
      focus: { prox: 24 },
      drag: { x: true, y: false, dist: 6 },
    },
    focus: { alpha: 0.35 },
    hooks: {
      setSeries: [
        (plot, series) => {
          near = [series, plot.cursor.idx];
          heard.current.onPoint?.(series, plot.cursor.idx);
        },
      ],
      setCursor: [
        (plot) => {
          near = [near[0], plot.cursor.idx];
          heard.current.onPoint?.(near[0], plot.cursor.idx);
        },
      ],
      ready: [
        (plot) => {
          plot.over.addEventListener("click", () => heard.current.onPick?.(near[0], plot.cursor.idx));
        },
      ],
    },
  };
}

function withAxes(options, found) {
  const axis = {
    stroke: found.muted,
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    labelSize: 18,
    grid: { stroke: found.line, width: 1 },
    ticks: { stroke: found.line, width: 1, size: 4 },
  };
  const [x, y] = options.axes;
  return {
    ...options,
    axes: [
      { ...axis, size: 34, ...x },
      { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 4))), ...y },
    ],
  };
}

/** A range of values that a few far ones do not spoil: those on the bad side are cut off. */
export function sturdyRange(values, direction) {
  const finite = values.filter((value) => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  if (!finite.length) return [0, 1];
  let [low, high] = [finite[0], finite[finite.length - 1]];
  const at = (share) => finite[Math.round(share * (finite.length - 1))];
  const core = at(0.9) - at(0.1);
  if (finite.length >= 10 && core > 0) {
    if (direction === "maximize") low = Math.max(low, at(0.1) - 3 * core);
    else high = Math.min(high, at(0.9) + 3 * core);
  }
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - margin, high + margin];
}

/** Options of the y scale; a logarithmic one needs values above 0. */
export function valueScale(direction, isLog) {
  return isLog ? { distr: 3 } : { range: (plot) => sturdyRange(plot.data.slice(1).flat(), direction) };
}

export function canBeLog(values) {
  return values.length > 0 && values.every((value) => value === null || !Number.isFinite(value) || value > 0);
}

export function LogSwitch({ isLog, onChange }) {
  return html`<label class="check"><input type="checkbox" checked=${isLog} onChange=${(event) => onChange(event.target.checked)} /> logarithmic</label>`;
}
