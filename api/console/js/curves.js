// Curves of trials while they run, with the line that the pruner compares them with.

import { html, useMemo, useState } from "../vendor/preact-htm.js";
import { Chart, LogSwitch, WHOLE_STEPS, canBeLog, valueScale } from "./chart.js";
import { REASONS, TRIAL_WORDS, count, number, pruneSentence } from "./format.js";
import { Card, Empty } from "./parts.js";
import { toTrial } from "./place.js";

/** Columns for the chart: all steps, one column for each curve, and the threshold above them. */
export function alignedCurves(curves, thresholds) {
  const lines = [...curves, thresholds ?? { steps: [], values: [] }];
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const places = new Map(steps.map((step, index) => [step, index]));
  const columns = lines.map(({ steps: own, values }) => {
    const column = Array(steps.length).fill(null);
    own.forEach((step, index) => {
      column[places.get(step)] = Number.isFinite(values[index]) ? values[index] : null;
    });
    return column;
  });
  return [steps, ...columns];
}

/** From the back to the front: what matters more is drawn later. */
const ORDER = { FAIL: 0, PRUNED: 1, COMPLETE: 2, WAITING: 3, RUNNING: 3 };

function lookOf(curve, found) {
  if (curve.is_best) return [found.good, 2.5];
  if (curve.state === "RUNNING") return [found.accent, 2];
  if (curve.state === "FAIL") return [found.bad, 1, [2, 3]];
  return curve.state === "PRUNED" ? [found.ghost, 1, [4, 3]] : [found.ghost, 1];
}

function styleOf(curve, found) {
  const [colour, width, dash] = lookOf(curve, found);
  const points = { show: curve.steps.length === 1, size: 5, width: 0, fill: colour };
  return { spanGaps: true, stroke: colour, width, dash, points };
}

export function Curves({ study, curves, version }) {
  const [isLog, setLog] = useState(false);
  const [near, setNear] = useState(null);
  const shown = useMemo(
    () => curves.trials.filter((curve) => curve.steps.length).sort((a, b) => a.is_best - b.is_best || ORDER[a.state] - ORDER[b.state] || a.number - b.number),
    [curves, version],
  );
  const data = useMemo(() => alignedCurves(shown, curves.thresholds), [shown, curves]);
  const values = useMemo(() => data.slice(1).flat(), [data]);
  const metric = study.metric ?? "value";
  const options = (found) => ({
    scales: { x: { time: false }, y: valueScale(study.direction, isLog) },
    axes: [{ label: "step", incrs: WHOLE_STEPS }, { label: metric }],
    series: [
      {},
      ...shown.map((curve) => styleOf(curve, found)),
      { stroke: found.text, width: 2, dash: [8, 4], spanGaps: true, points: { show: false } },
    ],
  });
  const shape = `${isLog}/${shown.map((curve) => `${curve.number}${curve.state[0]}${curve.is_best ? "b" : ""}${curve.steps.length === 1 ? 1 : ""}`).join()}`;
  const nearCurve = near === null ? undefined : shown[near - 1];
  return html`<${Card} id="curves" title="Curves" end=${canBeLog(values) && html`<${LogSwitch} isLog=${isLog} onChange=${setLog} />`}>
    ${shown.length === 0
      ? html`<${Empty} title="No curve yet"><span>A trial draws one when it reports its value step by step.</span><//>`
      : html`<figure>
          <${Chart} shape=${shape} options=${options} data=${data} label=${summaryOf(shown, curves.thresholds, metric)}
            onPoint=${setNear} onPick=${(series) => shown[series - 1] && (location.hash = toTrial(study.name, shown[series - 1].number))} />
          <figcaption>${nearCurve ? nearText(nearCurve) : lineText(curves.thresholds)}</figcaption>
          <${Legend} shown=${shown} thresholds=${curves.thresholds} />
        </figure>`}
  <//>`;
}

function Legend({ shown, thresholds }) {
  const has = (state) => shown.some((curve) => curve.state === state && !curve.is_best);
  return html`<div class="legend" aria-hidden="true">
    ${has("RUNNING") && html`<span class="k-accent"><i>running</i></span>`}
    ${shown.some((curve) => curve.is_best) && html`<span class="k-good"><i>best</i></span>`}
    ${has("COMPLETE") && html`<span class="k-ghost"><i>complete</i></span>`}
    ${has("PRUNED") && html`<span class="dash k-ghost"><i>pruned</i></span>`}
    ${has("FAIL") && html`<span class="dash k-bad"><i>failed</i></span>`}
    ${thresholds?.values.length > 0 && html`<span class="dash k-text"><i>${thresholds.pruner} that the pruner compares with</i></span>`}
  </div>`;
}

function lineText(thresholds) {
  if (!thresholds) return "This study's pruner does not compare with one value for each step.";
  const left = thresholds.n_startup_trials - thresholds.n_complete;
  if (left > 0) return `Pruning begins when ${count(left, "more trial")} ${left === 1 ? "has" : "have"} completed.`;
  const from = thresholds.first_step ? `, from step ${thresholds.first_step} on` : "";
  return `A trial is pruned when its best value so far is worse than the ${thresholds.pruner} of ${count(thresholds.n_complete, "complete trial")} at its step${from}.`;
}

function summaryOf(shown, thresholds, metric) {
  const of = (state) => shown.filter((curve) => curve.state === state).length;
  return `${metric} by step: ${count(of("RUNNING"), "running curve")}, ${of("COMPLETE")} complete, ${of("PRUNED")} pruned. ${lineText(thresholds)}`;
}

/** What became of a trial, as a sentence. */
export function endText(curve) {
  const word = TRIAL_WORDS[curve.state];
  if (curve.prune) return `pruned ${pruneSentence(curve.prune)}`;
  return curve.reason ? `${word}: ${REASONS[curve.reason] ?? curve.reason}` : word;
}

function nearText(curve) {
  const last = curve.values.length - 1;
  return `Trial ${curve.number}, ${endText(curve)}; ${number(curve.values[last])} at step ${curve.steps[last]}`;
}
