// One trial, live: its curve, attempts, parameters, measurements, log, and why it ended.

import { html, useMemo, useState } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { TrialActions } from "./actions.js";
import { Chart, WHOLE_STEPS } from "./chart.js";
import { REASONS, between, bytes, moment, number, pruneSentence, toNumber, value, when } from "./format.js";
import { useEvery, useLoaded, useStream } from "./loading.js";
import { Log } from "./log.js";
import { Attempts } from "./attempts.js";
import { Card, Facts, Fault, Loading, Pairs, State, Title } from "./parts.js";
import { toStudies, toStudy } from "./place.js";
import { TRIAL_KINDS, coalesced } from "./stream.js";
import { wordOf } from "./trial-table.js";

export function TrialView({ study: name, number: trialNumber }) {
  const { data: trial, error, reload } = useLoaded(() => get(studyPath(name, "trials", trialNumber)), [name, trialNumber]);
  const { data: study, reload: reloadStudy } = useLoaded(() => get(studyPath(name)), [name]);
  const soon = useMemo(() => coalesced(() => Promise.all([reload(), reloadStudy()]), () => 700), [reload, reloadStudy]);
  useStream(studyPath(name, "events"), [...TRIAL_KINDS, "report", "study_state"], (events) => {
    if (events.some((event) => event.number === trialNumber || event.number === null)) soon();
  }, soon);
  useEvery(30_000, soon, [soon]);
  return html`
    <div>
      <p class="crumbs"><a href=${toStudies}>Studies</a> / <a href=${toStudy(name)}>${name}</a></p>
      <div class="head">
        <${Title} text=${`Trial ${trialNumber} of ${name}`}>Trial ${trialNumber}<//>
        ${trial && html`<span role="status" aria-live="polite"><${State} state=${trial.state} word=${wordOf(trial)} /></span>`}
        ${study?.best?.number === trialNumber && html`<span class="tag">best</span>`}
        ${trial && html`<div class="end"><${TrialActions} study=${name} trial=${trial} onDone=${soon} /></div>`}
      </div>
    </div>
    <${Fault} error=${error} />
    ${!trial && !error && html`<${Loading} />`}
    ${trial && html`<${Trial} study=${study} name=${name} trial=${trial} />`}`;
}

function Trial({ study, name, trial }) {
  return html`
    ${trial.exclusion && html`<div class="notice warn">Excluded ${when(trial.exclusion.excluded_at)}${trial.exclusion.reason ? `: ${trial.exclusion.reason}` : ""}. Best, sampling, pruning and analysis leave it out.</div>`}
    <${End} trial=${trial} />
    <section class="card" aria-label="How it stands"><${Facts} facts=${factsOf(trial, study)} large=${1} /></section>
    <div class="grid">
      <${Curve} trial=${trial} study=${study} name=${name} />
      <${Card} id="params" title="Parameters"><${Pairs} label="Parameters" pairs=${Object.entries(trial.params).map(([key, found]) => [key, value(found)])} />
        ${trial.enqueued && html`<p class="small muted">Somebody asked for ${value(trial.enqueued)}.</p>`}
        <${Model} trial=${trial} />
      <//>
    </div>
    <${Attempts} trial=${trial} />
    <${Attributes} trial=${trial} />
    <${Log} name=${name} trial=${trial} />`;
}

function factsOf(trial, study) {
  const several = (study?.directions.length ?? 1) > 1;
  return [
    [study?.metric ?? "Value", several ? trial.values.map((found) => number(found)).join(", ") || "–" : number(trial.value ?? trial.last_value)],
    ["Steps", trial.last_step === null ? "–" : `${trial.last_step + 1}${study?.max_steps ? ` of ${study.max_steps}` : ""}`],
    ["Took", between(trial.started_at, trial.ended_at)],
    ["Attempt", trial.attempt || "–"],
    ["Worker", trial.worker ?? "–"],
    ["Device", trial.device ?? "–"],
    ["Started", html`<span title=${when(trial.started_at)}>${moment(trial.started_at)}</span>`],
  ];
}

/** Why it ended, with the traceback of the attempt that ended it. */
function End({ trial }) {
  if (trial.state === "PRUNED" && trial.prune) return html`<div class="notice">Pruned ${pruneSentence(trial.prune)}.</div>`;
  if (!trial.reason) return null;
  const last = trial.attempts[trial.attempts.length - 1];
  return html`<div class="notice ${trial.state === "FAIL" ? "bad" : ""}">
    <p><strong>${trial.state === "FAIL" ? "Failed" : "Pruned"}: ${REASONS[trial.reason] ?? trial.reason}.</strong> ${trial.message}</p>
    ${last?.traceback && html`<details open><summary>Traceback</summary><pre class="log" tabindex="0" aria-label="Traceback">${last.traceback}</pre></details>`}
  </div>`;
}

function Curve({ trial, study, name }) {
  const names = useMemo(() => [...new Set(trial.curve.flatMap((point) => Object.keys(point.metrics)))].sort(), [trial.curve]);
  const [chosen, setChosen] = useState("");
  const { data: curves } = useLoaded(async () => (study && study.directions.length === 1 ? get(studyPath(name, "curves"), { limit: 1 }) : null), [name, Boolean(study), trial.state]);
  const thresholds = chosen ? null : curves?.thresholds;
  const data = useMemo(() => {
    const own = new Map(trial.curve.map((point) => [point.step, toNumber(chosen ? point.metrics[chosen] : point.value)]));
    const line = new Map((thresholds?.steps ?? []).map((step, index) => [step, toNumber(thresholds.values[index])]));
    const steps = [...new Set([...own.keys(), ...line.keys()])].sort((a, b) => a - b);
    const finite = (found) => (Number.isFinite(found) ? found : null);
    return [steps, steps.map((step) => finite(line.get(step))), steps.map((step) => finite(own.get(step)))];
  }, [trial.curve, chosen, thresholds]);
  const metric = chosen || study?.metric || "value";
  const last = trial.curve[trial.curve.length - 1];
  const text = last ? `${metric} at step ${last.step}: ${number(chosen ? last.metrics[chosen] : last.value)}` : "It has reported nothing yet.";
  const options = (found) => ({
    scales: { x: { time: false } },
    axes: [{ label: "step", incrs: WHOLE_STEPS }, { label: metric }],
    series: [{}, { stroke: found.faint, width: 1.5, dash: [8, 4], spanGaps: true, points: { show: false } }, { stroke: found.accent, width: 2, spanGaps: true, points: { show: trial.curve.length < 40, size: 5, fill: found.accent } }],
  });
  const pick = names.length > 0 && html`<label class="check">Shows <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
    <option value="">${study?.metric ?? "value"}</option>${names.map((found) => html`<option key=${found} value=${found}>${found}</option>`)}</select></label>`;
  return html`<${Card} id="curve" title="Curve" end=${pick}>
    <figure>
      ${trial.curve.length > 0 && html`<${Chart} shape=${`${metric}/${trial.curve.length < 40}`} options=${options} data=${data} label=${`${metric} by step. ${text}`} />`}
      <figcaption>${text}</figcaption>
      ${thresholds && html`<div class="legend" aria-hidden="true"><span class="k-accent"><i>this trial</i></span><span class="dash"><i>${thresholds.pruner} that the pruner compares with</i></span></div>`}
    </figure>
  <//>`;
}

function Model({ trial }) {
  if (!trial.model) return null;
  const { url, file_name, size_bytes, step, sha256 } = trial.model;
  return html`<h3 style=${{ marginTop: ".8rem" }}>Model</h3>
    <p><a href=${url.replace(/^\//, "")} download>${file_name}</a> <span class="muted small">${bytes(size_bytes)}${step === null ? "" : `, of step ${step}`}</span></p>
    <p class="small muted mono" style=${{ overflowWrap: "anywhere" }}>SHA-256 ${sha256}</p>`;
}

function Attributes({ trial }) {
  const pairs = [...Object.entries(trial.user_attrs), ...Object.entries(trial.constraints).map(([name, found]) => [`constraint ${name}`, found])];
  if (!pairs.length) return null;
  return html`<${Card} id="attributes" title="Training and attributes">
    <${Facts} facts=${pairs.map(([name, found]) => [name.replaceAll("_", " "), value(found)])} />
  <//>`;
}
