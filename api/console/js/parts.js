// Small parts that every view is made of.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";
import { TONES, TRIAL_WORDS, count, whole } from "./format.js";

/** A state by its word and a colour. */
export function State({ state, word }) {
  return html`<span class="state ${TONES[state] ?? "calm"}">${word ?? TRIAL_WORDS[state] ?? state}</span>`;
}

export function Card({ title, end, children, id, place }) {
  return html`<section class="card" aria-labelledby=${id} ref=${place}>
    <header><h2 id=${id}>${title}</h2>${end && html`<div class="end">${end}</div>`}</header>
    ${children}
  </section>`;
}

/** @param {{facts: [string, any][]}} props */
export function Facts({ facts, large = 0 }) {
  return html`<dl class="facts">
    ${facts.map(([name, found], index) => html`<div class=${index < large ? "large" : ""} key=${name}><dt>${name}</dt><dd>${found}</dd></div>`)}
  </dl>`;
}

/** What went wrong, what to do, and by which id the service's log knows it. */
export function Fault({ error }) {
  if (!error) return null;
  return html`<div class="notice bad" role="alert">
    <p>${error.message}</p>
    ${error.requestId && html`<p class="small muted">Request ${error.requestId}, by which the service's log knows it.</p>`}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><strong>${title}</strong>${children}</div>`;
}

export function Loading() {
  return html`<p class="muted" role="status">Loading …</p>`;
}

/** How far a study is: trials by state, beside the number that it may have. */
export function Progress({ study }) {
  const total = Math.max(1, study.budget.n_trials, sum(study.counts) - (study.counts.WAITING ?? 0));
  const parts = ["COMPLETE", "PRUNED", "FAIL", "RUNNING"].filter((state) => study.counts[state]);
  const text = parts.map((state) => `${whole(study.counts[state])} ${TRIAL_WORDS[state]}`).join(", ");
  return html`<div class="split" role="img" aria-label=${`${text || "no trial yet"}, of ${count(study.budget.n_trials, "trial")}`} title=${text}>
    ${parts.map((state) => html`<span key=${state} class=${state} style=${{ width: `${(100 * study.counts[state]) / total}%` }}></span>`)}
  </div>`;
}

function sum(counts) {
  return Object.values(counts).reduce((total, n) => total + n, 0);
}

/** A line of numbers, the newest on the right; it is a picture, so it has words as well. */
export function Sparkline({ values, low, high, label, width = 120, height = 26, isStepped = false }) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (finite.length < 2) return html`<span class="muted small">–</span>`;
  const [bottom, top] = [low ?? Math.min(...finite), high ?? Math.max(...finite)];
  const x = (index) => ((index / (values.length - 1)) * width).toFixed(1);
  const y = (value) => (height - 2 - ((value - bottom) / (top - bottom || 1)) * (height - 4)).toFixed(1);
  let path = "";
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) return;
    path += path === "" ? `M${x(index)} ${y(value)}` : isStepped ? `H${x(index)}V${y(value)}` : `L${x(index)} ${y(value)}`;
  });
  return html`<svg class="spark" role="img" aria-label=${label} width=${width} height=${height} viewBox="0 0 ${width} ${height}">
    <path d=${path} />
  </svg>`;
}

/** A region that scrolls sideways on a narrow page, also by keys. */
export function Scroll({ label, children, kind = "" }) {
  return html`<div class="scroll ${kind}" role="region" aria-label=${label} tabindex="0">${children}</div>`;
}

/** The title of a view: it names the page, and gets the focus when one comes to it. */
export function Title({ children, text }) {
  const heading = useRef();
  useEffect(() => {
    document.title = `${text} · hpo`;
  }, [text]);
  return html`<h1 ref=${heading}>${children ?? text}</h1>`;
}

export function Pairs({ pairs, label }) {
  return html`<table class="pairs" aria-label=${label}>
    <tbody>${pairs.map(([name, found]) => html`<tr key=${name}><th scope="row">${name}</th><td>${found}</td></tr>`)}</tbody>
  </table>`;
}
