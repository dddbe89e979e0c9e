// The course of a study: the value of each trial by its number, and the best so far as a line.

import { html, useMemo, useState } from "../vendor/preact-htm.js";
import { Chart, LogSwitch, WHOLE_STEPS, canBeLog, valueScale } from "./chart.js";
import { TRIAL_WORDS, count, isBetter, number, toNumber } from "./format.js";
import { Card } from "./parts.js";
import { toTrial } from "./place.js";

/** For the chart: numbers, values of complete and of pruned trials, and the best value so far. */
export function courseOf(columns, direction) {
  const leftOut = new Set(columns.left_out);
  const rows = { numbers: [], complete: [], pruned: [], best: [] };
  let best = null;
  columns.numbers.forEach((trial, index) => {
    const value = toNumber(columns.values[0][index]);
    const state = columns.states[index];
    if (value === null || !Number.isFinite(value) || !["COMPLETE", "PRUNED"].includes(state)) return;
    const counts = state === "COMPLETE" && !leftOut.has(trial);
    if (counts && (best === null || isBetter(value, best, direction))) best = value;
    rows.numbers.push(trial);
    rows.complete.push(counts ? value : null);
    rows.pruned.push(counts ? null : value);
    rows.best.push(best);
  });
  return rows;
}

export function History({ study, columns }) {
  const direction = study.direction;
  const course = useMemo(() => courseOf(columns, direction), [columns, direction]);
  const [isLog, setLog] = useState(false);
  const [near, setNear] = useState(null);
  const data = useMemo(() => [course.numbers, course.pruned, course.complete, course.best], [course]);
  const values = useMemo(() => [...course.complete, ...course.pruned].filter((value) => value !== null), [course]);
  const metric = study.metric ?? "value";
  const options = (found) => ({
    scales: { x: { time: false }, y: valueScale(direction, isLog) },
    axes: [{ label: "trial", incrs: WHOLE_STEPS }, { label: metric }],
    series: [
      {},
      { ...dots(found.ghost, 4), label: "pruned" },
      { ...dots(found.accent, 5), label: "complete" },
      { label: "best so far", stroke: found.good, width: 2, spanGaps: true, points: { show: false }, paths: globalThis.uPlot.paths.stepped({ align: 1 }) },
    ],
  });
  const best = course.best[course.best.length - 1];
  const summary = best === null || best === undefined ? "No trial has completed yet." : `Best so far: ${number(best)} after ${count(course.numbers.length, "trial")} with a value.`;
  const pick = (_, index) => index !== null && course.numbers[index] !== undefined && (location.hash = toTrial(study.name, course.numbers[index]));
  return html`<${Card} id="history" title="History" end=${canBeLog(values) && html`<${LogSwitch} isLog=${isLog} onChange=${setLog} />`}>
    <figure>
      ${values.length > 0 && html`<${Chart} shape=${isLog} options=${options} data=${data}
        label=${`${metric} by trial. ${summary}`} onPoint=${(_, index) => setNear(index)} onPick=${pick} />`}
      <figcaption>${near !== null && course.numbers[near] !== undefined ? nearText(course, near) : summary}</figcaption>
      <div class="legend" aria-hidden="true">
        <span class="dot k-accent"><i>complete</i></span><span class="dot k-ghost"><i>pruned or left out</i></span><span class="k-good"><i>best so far</i></span>
      </div>
    </figure>
  <//>`;
}

function dots(colour, size) {
  return { paths: () => null, points: { show: true, size, width: 0, fill: colour, stroke: colour } };
}

function nearText(course, index) {
  const state = course.complete[index] === null ? "PRUNED" : "COMPLETE";
  return `Trial ${course.numbers[index]}: ${number(course.complete[index] ?? course.pruned[index])}, ${TRIAL_WORDS[state]}`;
}
