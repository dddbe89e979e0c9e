// One study, live.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { studyPath } from "./api.js";
import { StudyActions } from "./actions.js";
import { Curves } from "./curves.js";
import { Importances, Pruning } from "./findings.js";
import { between, count, number, value, when, whole } from "./format.js";
import { History } from "./history.js";
import { useEvery, useFrame, useSession, useStream } from "./loading.js";
import { Parallel } from "./parallel.js";
import { Pareto } from "./pareto.js";
import { Card, Empty, Facts, Fault, Loading, Pairs, Progress, State, Title } from "./parts.js";
import { toLaunch, toStudies, toTrial } from "./place.js";
import { STUDY_KINDS, TRIAL_KINDS } from "./stream.js";
import { StudyModel } from "./study-model.js";
import { TrialTable } from "./trial-table.js";

const LOOK_AGAIN_MS = 30_000;

function useStudy(name) {
  const { report } = useFrame();
  const [version, setVersion] = useState(0);
  const model = useMemo(() => new StudyModel(name, setVersion, report), [name]);
  useEffect(() => {
    model.load();
    return () => model.close();
  }, [model]);
  useStream(
    studyPath(name, "events"),
    [...STUDY_KINDS, ...TRIAL_KINDS, "report"],
    (events) => (events.some(({ kind }) => kind === "reset") ? model.load() : model.hear(events)),
    () => model.load(),
  );
  useEvery(LOOK_AGAIN_MS, () => model.refreshSoon());
  return [model, version];
}

export function StudyView({ study: name }) {
  const [model, version] = useStudy(name);
  const { study, columns, curves, error } = model;
  const spoken = useSpoken(study);
  if (!study) return html`<${Title} text=${name} />${error ? html`<${Fault} error=${error} />` : html`<${Loading} />`}`;
  const several = study.directions.length > 1;
  const isEmpty = Object.values(study.counts).every((n) => n === 0);
  return html`
    <${Head} study=${study} onDone=${() => model.refreshSoon()} />
    <p class="hidden" role="status" aria-live="polite">${spoken}</p>
    <${Fault} error=${error} />
    <${Warnings} study=${study} />
    <${Overview} study=${study} />
    ${isEmpty && html`<div class="card"><${Empty} title="No trial yet"><span>The first one begins when a worker takes it.</span><a href="#/workers">See who works</a><//></div>`}
    ${columns && !isEmpty && html`<div class="grid">
      ${several ? html`<${Pareto} study=${study} columns=${columns} />` : html`<${History} study=${study} columns=${columns} />`}
      ${!several && curves && html`<${Curves} study=${study} curves=${curves} version=${version} />`}
    </div>
    ${!several && html`<${Parallel} study=${study} columns=${columns} />`}
    <div class="grid">
      ${!several && html`<${Importances} study=${study} columns=${columns} />`}
      ${!several && html`<${Pruning} study=${study} curves=${curves} />`}
    </div>`}
    ${!isEmpty && html`<${TrialTable} study=${study} version=${tableVersion(study, columns)} />`}
    <${Definition} study=${study} />`;
}

/** The table is asked for anew when trials have come or changed, and not with each report. */
function tableVersion(study, columns) {
  return `${study.n_started}/${JSON.stringify(study.counts)}/${study.awaiting_attempt}/${columns?.left_out.length ?? 0}/${study.state}`;
}

/** A change of the state, for those who hear the page. */
function useSpoken(study) {
  const last = useRef(null);
  const [spoken, setSpoken] = useState("");
  const state = study?.state;
  useEffect(() => {
    if (last.current && state && last.current !== state) setSpoken(`The study is ${state} now.`);
    last.current = state ?? last.current;
  }, [state]);
  return spoken;
}

function Head({ study, onDone }) {
  return html`<div>
    <p class="crumbs"><a href=${toStudies}>Studies</a></p>
    <div class="head">
      <${Title} text=${study.name} />
      <${State} state=${study.state} />
      ${study.archived_at && html`<span class="tag">archived</span>`}
      ${study.tags.map((tag) => html`<span class="tag" key=${tag}>${tag}</span>`)}
      <div class="end actions">
        <${StudyActions} study=${study} onDone=${onDone} />
        <a class="button" href=${`console/dashboard/${encodeURIComponent(study.name)}`}>Optuna dashboard</a>
      </div>
    </div>
  </div>`;
}

function Warnings({ study }) {
  return html`
    ${study.reason && html`<div class="notice ${study.state === "failed" ? "bad" : ""}">${study.reason}</div>`}
    ${study.blocked && html`<div class="notice warn">${study.blocked}</div>`}
    ${study.models_blocked && html`<div class="notice warn">${study.models_blocked}</div>`}`;
}

function Overview({ study }) {
  const done = study.counts.COMPLETE + study.counts.PRUNED + study.counts.FAIL;
  const best = study.best;
  const facts = [
    ["Best", best ? html`<a class="plain" href=${toTrial(study.name, best.number)}>${number(best.value)}</a>` : study.directions.length > 1 ? "see the front" : "–"],
    ["Trials ended", `${whole(done)} of ${whole(study.budget.n_trials)}`],
    ["Running", whole(study.counts.RUNNING - study.awaiting_attempt)],
    ["Complete", whole(study.counts.COMPLETE)],
    ["Pruned", whole(study.counts.PRUNED)],
    ["Failed", study.counts.FAIL ? html`<span class="bad-text">${whole(study.counts.FAIL)}</span>` : "0"],
    [study.ended_at ? "Took" : "Open for", html`<span title=${`Created ${when(study.created_at)}`}>${between(study.created_at, study.ended_at)}</span>`],
  ];
  return html`<section class="card" aria-label="How it stands">
    <${Facts} facts=${facts} large=${2} />
    <div style=${{ marginTop: ".8rem" }}><${Progress} study=${study} /></div>
    ${study.awaiting_attempt > 0 && html`<p class="small muted" style=${{ marginTop: ".4rem" }}>${count(study.awaiting_attempt, "trial")} wait for the next attempt.</p>`}
  </section>`;
}

function algorithm({ name, ...options }) {
  const told = Object.entries(options).map(([key, found]) => `${key} ${value(found)}`);
  return told.length ? `${name} (${told.join(", ")})` : name;
}

function rangeOf(parameter) {
  if (parameter.choices) return parameter.choices.map(value).join(", ");
  const step = parameter.step && parameter.step !== 1 ? `, step ${number(parameter.step)}` : "";
  return `${number(parameter.low)} to ${number(parameter.high)}${step}${parameter.log ? ", logarithmic" : ""}`;
}

function Definition({ study }) {
  const session = useSession();
  const facts = [
    ["Objective", study.objective ?? "none: programs ask and tell"],
    ["Direction", study.directions.join(", ")],
    ["Metric", study.metrics.join(", ") || study.metric || "–"],
    ["Sampler", algorithm(study.sampler)],
    ["Pruner", algorithm(study.pruner)],
    ["Seed", study.seed],
    ["Steps", study.max_steps ?? "not known"],
    ["At a time", study.budget.max_parallel_trials ?? "no limit"],
    ["Value", study.value_rule],
    ["Priority", study.priority],
    ["Attempts of a trial", study.max_attempts],
  ];
  const space = Object.entries(study.space ?? {}).map(([name, parameter]) => [
    name,
    html`${rangeOf(parameter)}${parameter.when ? html` <span class="muted">when ${value(parameter.when)}</span>` : ""}`,
  ]);
  return html`<${Card} id="definition" title="Definition" end=${session.can("operator") && html`<a href=${`${toLaunch}?from=${encodeURIComponent(study.name)}`}>New study like this one</a>`}>
    ${study.notes && html`<p style=${{ marginBottom: ".7rem", whiteSpace: "pre-wrap" }}>${study.notes}</p>`}
    <${Facts} facts=${facts} />
    <div class="grid" style=${{ marginTop: ".9rem" }}>
      ${space.length > 0 && html`<div><h3>Space</h3><${Pairs} label="Space" pairs=${space} /></div>`}
      ${Object.keys(study.settings).length > 0 && html`<div><h3>Settings</h3><${Facts} facts=${Object.entries(study.settings).map(([name, found]) => [name, value(found)])} /></div>`}
    </div>
  <//>`;
}
