// The trials of a study, a page at a time, in the order and with the filter that one chooses.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { REASONS, TRIAL_WORDS, between, number, value } from "./format.js";
import { useLoaded, useRested } from "./loading.js";
import { Card, Empty, Fault, Scroll, State } from "./parts.js";
import { toTrial } from "./place.js";

const PAGE = 25;
const SORTED = { number: "Trial", value: "Value", started: "Started", duration: "Duration" };

export function TrialTable({ study, version }) {
  const [wish, setWish] = useState({ sort: "number", descending: true, state: "", excluded: "", min_value: "", max_value: "" });
  const [places, setPlaces] = useState([null]);
  const asked = useRested(wish);
  useEffect(() => setPlaces([null]), [asked]);
  const after = places[places.length - 1];
  const query = { ...withoutFaults(asked), limit: PAGE, after };
  // The first page follows the study; a later one stands still while it is read.
  const pulse = places.length === 1 ? version : 0;
  const { data, error } = useLoadedKept(study.name, query, pulse);
  const change = (changes) => setWish((old) => ({ ...old, ...changes }));
  return html`<${Card} id="trials" title="Trials">
    <${Filters} wish=${wish} change=${change} />
    <${Fault} error=${error} />
    ${data && data.items.length === 0 && html`<${Empty} title="No such trial"><span>${study.n_started ? "Change what is asked for above." : "The first one begins when a worker takes it."}</span><//>`}
    ${data && data.items.length > 0 && html`<${Rows} study=${study} trials=${data.items} wish=${wish} change=${change} />`}
    <nav class="pages" aria-label="Pages of trials">
      <button type="button" disabled=${places.length === 1} onClick=${() => setPlaces(places.slice(0, -1))}>Previous</button>
      <span class="muted small">Page ${places.length}</span>
      <button type="button" disabled=${!data || data.next === null} onClick=${() => setPlaces([...places, data.next])}>Next</button>
    </nav>
  <//>`;
}

/** As useLoaded, but a new pulse asks again without taking the old page away. */
function useLoadedKept(name, query, pulse) {
  const key = JSON.stringify(query);
  const found = useLoaded(() => get(studyPath(name, "trials"), query), [name, key]);
  const isFirst = useRef(true);
  useEffect(() => {
    if (pulse && !isFirst.current) found.reload();
    isFirst.current = false;
  }, [pulse]);
  return found;
}

function withoutFaults(wish) {
  const finite = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : "");
  return { ...wish, min_value: finite(wish.min_value), max_value: finite(wish.max_value) };
}

function Filters({ wish, change }) {
  const field = (name, label, control) => html`<div class="field"><label for=${`filter-${name}`}>${label}</label>${control(`filter-${name}`)}</div>`;
  return html`<div class="filters" role="group" aria-label="Which trials" style=${{ marginBottom: ".6rem" }}>
    ${field("state", "State", (id) => html`<select id=${id} value=${wish.state} onChange=${(event) => change({ state: event.target.value })}>
      <option value="">any</option>
      ${Object.entries(TRIAL_WORDS).map(([state, word]) => html`<option key=${state} value=${state}>${word}</option>`)}
    </select>`)}
    ${field("excluded", "Excluded", (id) => html`<select id=${id} value=${wish.excluded} onChange=${(event) => change({ excluded: event.target.value })}>
      <option value="">either</option><option value="true">excluded</option><option value="false">not excluded</option>
    </select>`)}
    ${field("min", "Value from", (id) => html`<input id=${id} inputmode="decimal" value=${wish.min_value} onInput=${(event) => change({ min_value: event.target.value })} />`)}
    ${field("max", "Value to", (id) => html`<input id=${id} inputmode="decimal" value=${wish.max_value} onInput=${(event) => change({ max_value: event.target.value })} />`)}
  </div>`;
}

function Rows({ study, trials, wish, change }) {
  const names = [...new Set([...Object.keys(study.space ?? {}), ...trials.flatMap((trial) => Object.keys(trial.params))])];
  const several = study.directions.length > 1;
  const head = (sort, kind = "") => html`<th scope="col" class=${kind} aria-sort=${wish.sort === sort ? (wish.descending ? "descending" : "ascending") : "none"}>
    <button type="button" onClick=${() => change({ sort, descending: wish.sort === sort ? !wish.descending : sort !== "value" || study.direction === "maximize" })}>
      ${SORTED[sort]}${wish.sort === sort ? (wish.descending ? " ↓" : " ↑") : ""}</button></th>`;
  return html`<${Scroll} label="Table of trials"><table>
    <thead><tr>
      ${head("number")}<th scope="col">State</th>
      ${several ? study.directions.map((_, index) => html`<th key=${index} scope="col" class="num">${study.metrics[index] ?? `Value ${index}`}</th>`) : head("value", "num")}
      <th scope="col" class="num">Last step</th>
      ${names.map((name) => html`<th key=${name} scope="col" class="num">${name}</th>`)}
      ${head("duration", "num")}<th scope="col">Worker</th>
    </tr></thead>
    <tbody>${trials.map((trial) => html`<${Row} key=${trial.number} study=${study} trial=${trial} names=${names} several=${several} />`)}</tbody>
  </table><//>`;
}

function Row({ study, trial, names, several }) {
  const isBest = study.best?.number === trial.number;
  const values = several ? trial.values : [trial.value ?? (trial.state === "RUNNING" ? trial.last_value : null)];
  return html`<tr class=${trial.state === "PRUNED" || trial.exclusion ? "greyed" : ""}>
    <td><a href=${toTrial(study.name, trial.number)}>${trial.number}</a>${isBest && html` <span class="tag">best</span>`}${trial.exclusion && html` <span class="tag">excluded</span>`}</td>
    <td><${State} state=${trial.state} word=${wordOf(trial)} /></td>
    ${(several ? study.directions : [0]).map((_, index) => html`<td key=${index} class="num">${number(values[index])}</td>`)}
    <td class="num">${trial.last_step ?? "–"}</td>
    ${names.map((name) => html`<td key=${name} class="num">${value(trial.params[name])}</td>`)}
    <td class="num">${between(trial.started_at, trial.ended_at)}</td>
    <td class="muted">${trial.worker ?? "–"}</td>
  </tr>`;
}

export function wordOf(trial) {
  if (trial.awaiting_attempt) return "waits for its next attempt";
  const word = TRIAL_WORDS[trial.state];
  return trial.reason && trial.state !== "COMPLETE" ? `${word}: ${shortReason(trial.reason)}` : word;
}

function shortReason(reason) {
  return reason in REASONS ? reason.replaceAll("_", " ") : reason;
}
