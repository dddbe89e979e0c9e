// The attempts of a trial on a time line: who ran it when, and how each run ended.

import { html } from "../vendor/preact-htm.js";
import { REASONS, between, clock, count } from "./format.js";
import { Card, Scroll } from "./parts.js";

const TONES = { complete: "good", pruned: "", failed: "bad", stopped: "warn", released: "warn" };
const WORDS = { released: "given back", stopped: "stopped", complete: "complete", pruned: "pruned", failed: "failed" };

export function Attempts({ trial }) {
  if (!trial.attempts.length) return null;
  const from = Date.parse(trial.attempts[0].started_at);
  const to = Math.max(from + 1, ...trial.attempts.map(({ ended_at }) => (ended_at ? Date.parse(ended_at) : Date.now())));
  const share = (time) => (100 * (time - from)) / (to - from);
  return html`<${Card} id="attempts" title="Attempts">
    <div class="timeline" role="img" aria-label=${`${count(trial.attempts.length, "attempt")} in ${between(new Date(from).toISOString(), new Date(to).toISOString())}`}>
      ${trial.attempts.map((attempt) => {
        const begin = share(Date.parse(attempt.started_at));
        const end = share(attempt.ended_at ? Date.parse(attempt.ended_at) : Date.now());
        return html`<span class="small muted" key=${`n${attempt.attempt}`}>${attempt.attempt}</span>
          <div class="lane" key=${attempt.attempt}><span class=${attempt.outcome ? TONES[attempt.outcome] : "busy"} style=${{ left: `${begin}%`, width: `${Math.max(0.5, end - begin)}%` }}></span></div>`;
      })}
    </div>
    <${Scroll} label="Table of attempts"><table>
      <thead><tr><th scope="col">Attempt</th><th scope="col">Outcome</th><th scope="col">Began</th><th scope="col" class="num">Took</th><th scope="col">Resumed from</th><th scope="col">Worker</th><th scope="col">Device</th></tr></thead>
      <tbody>${trial.attempts.map((attempt) => html`<tr key=${attempt.attempt}>
        <td>${attempt.attempt}</td>
        <td class="wrap">${outcomeOf(attempt)}</td>
        <td>${clock(attempt.started_at)}</td>
        <td class="num">${between(attempt.started_at, attempt.ended_at)}</td>
        <td>${attempt.resumed_from_step === null ? "the beginning" : `the checkpoint of step ${attempt.resumed_from_step}`}</td>
        <td>${attempt.worker}</td><td>${attempt.device}</td>
      </tr>`)}</tbody>
    </table><//>
  <//>`;
}

function outcomeOf(attempt) {
  if (!attempt.outcome) return "runs";
  const word = WORDS[attempt.outcome] ?? attempt.outcome;
  return attempt.reason ? `${word}: ${REASONS[attempt.reason] ?? attempt.reason}` : word;
}
