// Parallel coordinates: each trial is a line over its parameters, the better the stronger.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { useColours } from "./chart.js";
import { count, isBetter, number, toNumber, value as spelled } from "./format.js";
import { Card } from "./parts.js";

const MAX_LINES = 1500;
const HEIGHT = 260;
const [TOP, BOTTOM, SIDE] = [26, 34, 46];

/** One axis: where a value stands on it, from 0 at the bottom to 1. */
function axisOf(name, values, parameter) {
  const known = values.filter((found) => found !== null && found !== undefined);
  if (known.every((found) => typeof found === "number") && !parameter?.choices) {
    const isLog = Boolean(parameter?.log);
    const scaled = isLog ? Math.log : (found) => found;
    const low = parameter?.low ?? known.reduce((a, b) => Math.min(a, b), Infinity);
    const high = parameter?.high ?? known.reduce((a, b) => Math.max(a, b), -Infinity);
    const [from, to] = [scaled(low), scaled(high)];
    return { name: isLog ? `${name} (log)` : name, low: number(low, 3), high: number(high, 3), place: (found) => (scaled(found) - from) / (to - from || 1) };
  }
  const labels = [...new Set([...(parameter?.choices ?? []), ...known].map(spelled))];
  return {
    name,
    labels,
    low: labels[0] ?? "",
    high: labels[labels.length - 1] ?? "",
    place: (found) => (labels.length > 1 ? labels.indexOf(spelled(found)) / (labels.length - 1) : 0.5),
  };
}

/** The trials to draw, the worst first; of many the best ones, and others spread over the rest. */
export function ranked(columns, direction) {
  const leftOut = new Set(columns.left_out);
  const found = [];
  columns.numbers.forEach((trial, index) => {
    const value = toNumber(columns.values[0][index]);
    if (columns.states[index] === "COMPLETE" && Number.isFinite(value) && !leftOut.has(trial)) found.push({ index, value });
  });
  found.sort((a, b) => (a.value === b.value ? 0 : isBetter(a.value, b.value, direction) ? 1 : -1));
  if (found.length <= MAX_LINES) return found;
  const best = found.slice(-MAX_LINES / 3);
  const others = found.slice(0, -MAX_LINES / 3);
  const every = others.length / ((MAX_LINES * 2) / 3);
  return Array.from({ length: (MAX_LINES * 2) / 3 }, (_, place) => others[Math.floor(place * every)]).concat(best);
}

export function Parallel({ study, columns }) {
  const canvas = useRef();
  const found = useColours();
  const [width, setWidth] = useState(0);
  const lines = useMemo(() => ranked(columns, study.direction), [columns, study.direction]);
  const metric = study.metric ?? "value";
  const axes = useMemo(() => {
    const names = Object.keys(columns.params).filter((name) => new Set(columns.params[name].map(spelled)).size > 1 || Object.keys(columns.params).length < 3);
    const shown = names.map((name) => ({ ...axisOf(name, columns.params[name], study.space?.[name]), at: (index) => columns.params[name][index] }));
    const values = lines.map(({ value }) => value);
    return [...shown, { ...axisOf(metric, sturdy(values), null), at: (index) => toNumber(columns.values[0][index]) }];
  }, [columns, lines]);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(canvas.current.parentNode);
    return () => watch.disconnect();
  }, [lines.length > 1]);
  useEffect(() => {
    if (width && canvas.current) draw(canvas.current, width, axes, lines, found);
  }, [width, axes, lines, found]);
  const label = `${count(lines.length, "complete trial")} over ${axes.map(({ name }) => name).join(", ")}; the better a trial, the stronger its line.`;
  return html`<${Card} id="parallel" title="Parallel coordinates">
    <figure>
      <div class="chart"><canvas ref=${canvas} role="img" aria-label=${label} height=${HEIGHT}></canvas></div>
      <figcaption>${lines.length < 2 ? "Two complete trials and more show how parameters and values go together." : "The better a trial, the stronger its line."}</figcaption>
    </figure>
  <//>`;
}

function sturdy(values) {
  return values.length ? values : [0, 1];
}

function draw(canvas, width, axes, lines, found) {
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${HEIGHT}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const x = (place) => SIDE + (place * (width - 2 * SIDE)) / Math.max(1, axes.length - 1);
  const y = (share) => HEIGHT - BOTTOM - Math.min(1, Math.max(0, share)) * (HEIGHT - TOP - BOTTOM);
  lines.forEach(({ index }, rank) => {
    const share = (rank + 1) / lines.length;
    context.strokeStyle = share > 0.75 ? found.accent : found.ghost;
    context.globalAlpha = (0.12 + 0.78 * share ** 3) * (lines.length > 300 ? 0.5 : 1);
    context.lineWidth = rank === lines.length - 1 ? 2.5 : 1;
    if (rank === lines.length - 1) context.strokeStyle = found.good;
    if (rank === lines.length - 1) context.globalAlpha = 1;
    trace(context, axes, index, x, y);
  });
  context.globalAlpha = 1;
  axes.forEach((axis, place) => drawAxis(context, axis, x(place), found, place, axes.length, width));
}

function trace(context, axes, index, x, y) {
  context.beginPath();
  let isDown = false;
  axes.forEach((axis, place) => {
    const value = axis.at(index);
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    const share = axis.place(value);
    if (isDown) context.lineTo(x(place), y(share));
    else context.moveTo(x(place), y(share));
    isDown = true;
  });
  context.stroke();
}

function drawAxis(context, axis, x, found, place, n_axes, width) {
  context.strokeStyle = found.faint;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, TOP);
  context.lineTo(x, HEIGHT - BOTTOM);
  context.stroke();
  const align = place === 0 ? "left" : place === n_axes - 1 ? "right" : "center";
  context.textAlign = align;
  const at = place === 0 ? 2 : place === n_axes - 1 ? width - 2 : x;
  const room = (width - 2 * SIDE) / Math.max(1, n_axes - 1) - 6;
  context.fillStyle = found.muted;
  context.font = "11px system-ui, sans-serif";
  context.fillText(axis.high, at, TOP - 8, room);
  context.fillText(axis.low, at, HEIGHT - BOTTOM + 13, room);
  if (axis.labels?.length > 2 && axis.labels.length < 7) drawLabels(context, axis, x, found);
  context.fillStyle = found.text;
  context.textAlign = align;
  context.font = "600 12px system-ui, sans-serif";
  context.fillText(axis.name, at, HEIGHT - 6, room);
}

/** The choices between the lowest and the highest, beside the axis. */
function drawLabels(context, axis, x, found) {
  context.textAlign = "left";
  context.lineWidth = 3;
  context.strokeStyle = found.surface;
  axis.labels.slice(1, -1).forEach((label, index) => {
    const y = HEIGHT - BOTTOM - ((index + 1) / (axis.labels.length - 1)) * (HEIGHT - TOP - BOTTOM) + 4;
    context.strokeText(label, x + 6, y, 90);
    context.fillText(label, x + 6, y, 90);
  });
}
