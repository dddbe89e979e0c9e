// What came out of a study: which parameters matter, and what pruning spared.

import { html } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { endText } from "./curves.js";
import { REASONS, count, number, percent, whole } from "./format.js";
import { useLoaded, useSeen } from "./loading.js";
import { Card, Facts, Fault } from "./parts.js";
import { toTrial } from "./place.js";

const ENOUGH = 5; // complete trials, for importances
const EVERY = 10; // asked anew after so many more
const LISTED = 5;

export function Importances({ study, columns }) {
  const n_results = study.counts.COMPLETE - columns.left_out.length;
  const batch = n_results < ENOUGH ? -1 : Math.floor(n_results / EVERY);
  const [place, isSeen] = useSeen();
  const { data, error } = useLoaded(
    async () => (batch < 0 || !isSeen ? null : get(studyPath(study.name, "importances"))),
    [study.name, batch, study.state, isSeen],
  );
  return html`<${Card} id="importances" title="Importances" place=${place}>
    ${error?.code === "too_few_trials" ? html`<p class="muted">${error.message}</p>` : html`<${Fault} error=${error} />`}
    ${batch < 0 && html`<p class="muted">How much each parameter matters is known from ${count(ENOUGH, "complete trial")} on.</p>`}
    ${data && html`<div class="bars" role="list" aria-label="Importance of each parameter">
      ${data.importances.map(
        ({ parameter, importance }) => html`<span key=${parameter} role="listitem" style=${{ display: "contents" }}>
          <span>${parameter}</span>
          <span class="track"><span style=${{ width: `${100 * importance}%` }}></span></span>
          <span class="right">${percent(importance)}</span>
        </span>`,
      )}
    </div>
    <p class="small muted" style=${{ marginTop: ".5rem" }}>For reaching the best trials, by ${data.evaluator === "ped_anova" ? "PED-ANOVA" : data.evaluator} over ${count(data.n_trials, "trial")}.</p>`}
  <//>`;
}

export function Pruning({ study, curves }) {
  const [place, isSeen] = useSeen();
  const { data, error } = useLoaded(
    async () => (isSeen ? get(studyPath(study.name, "pruning")) : null),
    [study.name, study.counts.PRUNED, Math.floor(study.counts.COMPLETE / EVERY), study.state, isSeen],
  );
  return html`<${Card} id="pruning" title="Pruning" place=${place}>
    <${Fault} error=${error} />
    ${data && html`<${Facts} facts=${[
      ["Pruned", `${whole(data.n_pruned)} of ${whole(data.n_pruned + data.n_complete)}`],
      ["Steps spared", data.saved_steps === null ? "–" : whole(data.saved_steps)],
      ["Share of all steps", percent(data.share)],
      ["Steps of a whole trial", data.max_steps ?? "–"],
    ]} />
    ${data.n_pruned === 0 && html`<p class="muted small" style=${{ marginTop: ".6rem" }}>No trial was pruned so far; the pruner is ${study.pruner.name}.</p>`}
    ${data.nearest && html`<p class="small" style=${{ marginTop: ".6rem" }}>The closest call was <a href=${toTrial(study.name, data.nearest.number)}>trial ${data.nearest.number}</a>: ${number(data.nearest.value)} at step ${data.nearest.step}, where the best trial had ${number(data.nearest.best_value)}.</p>`}
    <${Reasons} reasons=${data.by_reason} />
    <${LastPruned} study=${study} curves=${curves?.trials ?? []} />`}
  <//>`;
}

function Reasons({ reasons }) {
  const others = Object.entries(reasons).filter(([reason]) => reason !== "pruner");
  return others.map(([reason, n]) => html`<p key=${reason} class="small muted">${count(n, "trial")} ended as pruned because ${REASONS[reason] ?? reason}.</p>`);
}

function LastPruned({ study, curves }) {
  const last = curves.filter((curve) => curve.state === "PRUNED").sort((a, b) => b.number - a.number).slice(0, LISTED);
  if (!last.length) return null;
  return html`<div class="small" style=${{ marginTop: ".7rem" }}>
    <h3>Last pruned</h3>
    <ul>${last.map((curve) => html`<li key=${curve.number}><a href=${toTrial(study.name, curve.number)}>Trial ${curve.number}</a> <span class="muted">${endText(curve)}</span></li>`)}</ul>
  </div>`;
}
