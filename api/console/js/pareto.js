// The front of a study with several directions: two of its values, and who no other one beats.

import { html, useMemo, useState } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { Chart } from "./chart.js";
import { count, number, toNumber } from "./format.js";
import { useLoaded } from "./loading.js";
import { Card, Fault, Scroll } from "./parts.js";
import { toTrial } from "./place.js";

const LISTED = 50;

function nameOf(study, index) {
  return study.metrics[index] ?? `value ${index}`;
}

export function Pareto({ study, columns }) {
  const n_complete = study.counts.COMPLETE;
  const { data: front, error } = useLoaded(() => get(studyPath(study.name, "pareto")), [study.name, n_complete]);
  const [[first, second], setPair] = useState([0, 1]);
  const points = useMemo(() => pointsOf(columns, front?.trials ?? [], first, second), [columns, front, first, second]);
  const [near, setNear] = useState(null);
  const options = (found) => ({
    scales: { x: { time: false } },
    axes: [{ label: nameOf(study, first), values: (_, ticks) => ticks.map((tick) => number(tick, 4)) }, { label: nameOf(study, second) }],
    series: [{}, dots(found.ghost, 5), dots(found.accent, 8)],
  });
  const summary = `${count(front?.trials.length ?? 0, "trial")} on the front of ${count(points.x.length, "complete trial")}.`;
  const data = useMemo(() => [points.x, points.others, points.front], [points]);
  const nearTrial = near === null ? undefined : points.numbers[near];
  return html`<${Card} id="pareto" title="Pareto front" end=${study.directions.length > 2 && html`<${Pair} study=${study} pair=${[first, second]} onChange=${setPair} />`}>
    <${Fault} error=${error} />
    <figure>
      ${points.x.length > 0 && html`<${Chart} shape=${`${first}/${second}`} options=${options} data=${data} height=${300} label=${`${nameOf(study, second)} against ${nameOf(study, first)}. ${summary}`}
        onPoint=${(_, index) => setNear(index)} onPick=${() => nearTrial !== undefined && (location.hash = toTrial(study.name, nearTrial))} />`}
      <figcaption>${nearTrial === undefined ? summary : `Trial ${nearTrial}`}</figcaption>
      <div class="legend" aria-hidden="true"><span class="dot k-accent"><i>on the front: no other trial is better in every value</i></span><span class="dot k-ghost"><i>others</i></span></div>
    </figure>
    <${Front} study=${study} trials=${front?.trials ?? []} />
  <//>`;
}

function dots(colour, size) {
  return { paths: () => null, points: { show: true, size, width: 0, fill: colour, stroke: colour } };
}

function pointsOf(columns, front, first, second) {
  const onFront = new Set(front.map(({ number: trial }) => trial));
  const found = [];
  columns.numbers.forEach((trial, index) => {
    const [x, y] = [toNumber(columns.values[first][index]), toNumber(columns.values[second][index])];
    if (columns.states[index] === "COMPLETE" && Number.isFinite(x) && Number.isFinite(y)) found.push({ trial, x, y });
  });
  found.sort((a, b) => a.x - b.x);
  return {
    numbers: found.map(({ trial }) => trial),
    x: found.map(({ x }) => x),
    others: found.map(({ trial, y }) => (onFront.has(trial) ? null : y)),
    front: found.map(({ trial, y }) => (onFront.has(trial) ? y : null)),
  };
}

function Pair({ study, pair, onChange }) {
  const choose = (place, chosen) => onChange(place === 0 ? [chosen, pair[1]] : [pair[0], chosen]);
  return html`<span class="filters">${["Across", "Up"].map(
    (label, place) => html`<label class="check" key=${label}>${label}
      <select value=${pair[place]} onChange=${(event) => choose(place, Number(event.target.value))}>
        ${study.directions.map((_, index) => html`<option key=${index} value=${index}>${nameOf(study, index)}</option>`)}
      </select></label>`,
  )}</span>`;
}

function Front({ study, trials }) {
  if (!trials.length) return null;
  return html`<${Scroll} label="Trials on the front" kind="tall"><table>
    <thead><tr><th scope="col">Trial</th>${study.directions.map((direction, index) => html`<th key=${index} scope="col" class="num">${nameOf(study, index)} (${direction})</th>`)}</tr></thead>
    <tbody>${trials.slice(0, LISTED).map(
      (trial) => html`<tr key=${trial.number}><td><a href=${toTrial(study.name, trial.number)}>${trial.number}</a></td>
        ${trial.values.map((value, index) => html`<td key=${index} class="num">${number(value)}</td>`)}</tr>`,
    )}</tbody>
  </table><//>`;
}
