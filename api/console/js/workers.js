// Workers: what each has, how busy it is, what it runs, and when it was last heard of.

import { html } from "../vendor/preact-htm.js";
import { get } from "./api.js";
import { ago, between, bytes, count, percent, when } from "./format.js";
import { useEvery, useLoaded, useStream } from "./loading.js";
import { Empty, Fault, Loading, Sparkline, State, Title } from "./parts.js";
import { toTrial } from "./place.js";
import { coalesced } from "./stream.js";

const LOOK_AGAIN_MS = 5000;

export function WorkersView() {
  const { data, error, reload } = useLoaded(() => get("v1/workers"), []);
  const soon = useSoon(reload);
  useStream("v1/events", ["worker_registered", "trial_started", "attempt_started", "attempt_ended", "trial_ended"], soon, soon);
  useEvery(LOOK_AGAIN_MS, soon, [soon]);
  const living = (data?.items ?? []).filter((worker) => worker.is_alive);
  const gone = (data?.items ?? []).filter((worker) => !worker.is_alive);
  return html`
    <div class="head"><${Title} text="Workers" />${data && html`<span class="muted">${summaryOf(living)}</span>`}</div>
    <${Fault} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && living.length === 0 && html`<div class="card"><${Empty} title="No worker is connected">
      <span>Studies wait until one is. Start it on a machine that reaches this service:</span>
      <code>hpo worker --url ${location.origin}</code>
    <//></div>`}
    ${living.length > 0 && html`<div class="grid">${living.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} />`)}</div>`}
    ${gone.length > 0 && html`<details class="card"><summary>${count(gone.length, "worker")} that ${gone.length === 1 ? "was" : "were"} here before</summary>
      <ul>${gone.map((worker) => html`<li key=${worker.id}>${worker.name} <span class="muted">last heard of ${ago(worker.last_seen_at)}${worker.trials.length ? `, while it held ${count(worker.trials.length, "trial")}` : ""}</span></li>`)}</ul>
    </details>`}`;
}

let known = null;

function useSoon(reload) {
  if (known?.reload !== reload) known = { reload, soon: coalesced(reload, () => 800) };
  return known.soon;
}

function summaryOf(living) {
  const slots = living.reduce((total, worker) => total + worker.slots, 0);
  const busy = living.reduce((total, worker) => total + worker.trials.length, 0);
  return `${count(living.length, "worker")}, ${busy} of ${count(slots, "slot")} busy`;
}

function Worker({ worker }) {
  const id = `worker-${worker.id}`;
  return html`<section class="card" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${worker.name}</h2>
      <${State} state=${worker.trials.length ? "running" : "stopped"} word=${worker.trials.length ? "busy" : "idle"} />
      <span class="end small muted" title=${when(worker.last_seen_at)}>heard of ${ago(worker.last_seen_at)}</span>
    </header>
    <p class="small muted"><${Slots} n=${worker.slots} busy=${worker.trials.length} />${" "}${worker.trials.length} of ${count(worker.slots, "slot")} busy · hpo ${worker.version} · runs ${worker.allow.join(", ")}</p>
    ${worker.figures.length > 0
      ? worker.figures.map((device) => html`<${Device} key=${device.device} device=${device} />`)
      : html`<p class="small muted" style=${{ marginTop: ".6rem" }}>${[...new Set(worker.devices)].join(", ")}: no figures yet; they come with its next heartbeat.</p>`}
    ${worker.trials.length > 0 && html`<h3 style=${{ marginTop: ".7rem" }}>Runs now</h3>
      <ul>${worker.trials.map(
        (held) => html`<li key=${`${held.study}/${held.number}`}><a href=${toTrial(held.study, held.number)}>${held.study}, trial ${held.number}</a>
          <span class="muted small"> for ${between(held.since)}${held.attempt > 1 ? `, attempt ${held.attempt}` : ""}${held.device === "cpu" ? "" : ` on ${shortDevice(held.device)}`}</span></li>`,
      )}</ul>`}
  </section>`;
}

function Slots({ n, busy }) {
  return html`<span class="slots" aria-hidden="true">${Array.from({ length: Math.min(n, 32) }, (_, index) => html`<i key=${index} class=${index < busy ? "on" : ""}></i>`)}</span>`;
}

function shortDevice(device) {
  return device.length > 14 ? `${device.slice(0, 12)}…` : device;
}

function Device({ device }) {
  const last = device.at.length - 1;
  const [used, busy] = [device.memory_used_bytes[last], device.utilization[last]];
  const span = between(device.at[0], device.at[last]);
  const shares = device.utilization.map((share) => (share === null ? NaN : share));
  return html`<div class="facts" style=${{ marginTop: ".7rem" }} role="group" aria-label=${device.name ?? device.device}>
    <div><dl><dt>Device</dt><dd title=${device.device}>${device.name ?? shortDevice(device.device)}</dd></dl></div>
    <div><dl><dt>Utilisation</dt><dd>${percent(busy)}</dd></dl><${Sparkline} values=${shares} low=${0} high=${1} width=${140} label=${`Utilisation in the last ${span}`} /></div>
    <div><dl><dt>Memory</dt><dd>${bytes(used)} <span class="muted small">of ${bytes(device.memory_total_bytes)}</span></dd></dl><${Sparkline} values=${device.memory_used_bytes} low=${0} high=${device.memory_total_bytes} width=${140} label=${`Memory in the last ${span}`} /></div>
  </div>`;
}
