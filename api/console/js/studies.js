// All studies: how each stands, how far it is, its best value and how that came about.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { ago, count, number, whole } from "./format.js";
import { useEvery, useLoaded, useRested, useSession, useStream } from "./loading.js";
import { Empty, Fault, Loading, Progress, Scroll, Sparkline, State, Title } from "./parts.js";
import { toLaunch, toStudy } from "./place.js";
import { STUDY_KINDS, coalesced } from "./stream.js";

const STATES = ["running", "paused", "stopping", "completed", "stopped", "failed"];
const PAGE = 25;
const SPARK_POINTS = 40;

export function StudiesView({ query }) {
  const session = useSession();
  const [wish, setWish] = useState({ state: "", tag: query.get("tag") ?? "", name_prefix: "", archived: "false" });
  const [places, setPlaces] = useState([null]);
  const asked = useRested(wish, 250);
  useEffect(() => setPlaces([null]), [asked]);
  const after = places[places.length - 1];
  const { data, error, reload } = useLoaded(
    () => get("v1/studies", { ...asked, limit: PAGE, after }),
    [JSON.stringify(asked), after],
  );
  const soon = useMemo(() => coalesced(() => reload(), () => 1000), [reload]);
  useStream("v1/events", [...STUDY_KINDS, "trial_started", "trial_ended"], soon, soon);
  useEvery(30_000, soon, [soon]);
  const change = (changes) => setWish((old) => ({ ...old, ...changes }));
  const isFiltered = Object.entries(asked).some(([name, found]) => found && !(name === "archived" && found === "false"));
  return html`
    <div class="head">
      <${Title} text="Studies" />
      ${session.can("operator") && html`<div class="end"><a class="button main" href=${toLaunch}>New study</a></div>`}
    </div>
    <${Filters} wish=${wish} change=${change} />
    <${Fault} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && data.items.length === 0 && html`<div class="card">${isFiltered ? html`<${Empty} title="No such study"><span>Change what is asked for above.</span><//>` : html`<${NoStudy} />`}</div>`}
    ${data && data.items.length > 0 && html`<div class="card">
      <${Rows} studies=${data.items} onTag=${(tag) => change({ tag })} />
      ${(places.length > 1 || data.next !== null) && html`<nav class="pages" aria-label="Pages of studies">
        <button type="button" disabled=${places.length === 1} onClick=${() => setPlaces(places.slice(0, -1))}>Newer</button>
        <button type="button" disabled=${data.next === null} onClick=${() => setPlaces([...places, data.next])}>Older</button>
      </nav>`}
    </div>`}`;
}

function NoStudy() {
  const session = useSession();
  return html`<${Empty} title="No study yet">
    ${session.can("operator")
      ? html`<span>A study is one search: an objective, its parameters, and a number of trials.</span><a class="button main" href=${toLaunch}>Launch the first one</a>`
      : html`<span>An operator launches one: <code>hpo study create --name first --objective objectives.synthetic:quadratic --n-trials 20</code></span>`}
  <//>`;
}

function Filters({ wish, change }) {
  return html`<div class="filters" role="group" aria-label="Which studies">
    <div class="field"><label for="name">Name begins with</label><input id="name" type="search" value=${wish.name_prefix} onInput=${(event) => change({ name_prefix: event.target.value })} /></div>
    <div class="field"><label for="state">State</label><select id="state" value=${wish.state} onChange=${(event) => change({ state: event.target.value })}>
      <option value="">any</option>${STATES.map((state) => html`<option key=${state} value=${state}>${state}</option>`)}
    </select></div>
    <div class="field"><label for="tag">Tag</label><input id="tag" type="search" value=${wish.tag} onInput=${(event) => change({ tag: event.target.value })} /></div>
    <div class="field"><label for="archived">Archived</label><select id="archived" value=${wish.archived} onChange=${(event) => change({ archived: event.target.value })}>
      <option value="false">not</option><option value="true">only</option><option value="any">either</option>
    </select></div>
  </div>`;
}

function Rows({ studies, onTag }) {
  return html`<${Scroll} label="Table of studies"><table class="stack">
    <thead><tr>
      <th scope="col">Study</th><th scope="col">State</th><th scope="col">Progress</th><th scope="col" class="num">Best</th>
      <th scope="col">Course</th><th scope="col" class="num">Failed</th><th scope="col">Created</th>
    </tr></thead>
    <tbody>${studies.map((study) => html`<${Row} key=${study.uuid} study=${study} onTag=${onTag} />`)}</tbody>
  </table><//>`;
}

function Row({ study, onTag }) {
  const ended = study.counts.COMPLETE + study.counts.PRUNED + study.counts.FAIL;
  return html`<tr>
    <td>
      <a href=${toStudy(study.name)}>${study.name}</a>
      ${study.archived_at && html` <span class="tag">archived</span>`}
      ${study.tags.map((tag) => html` <button type="button" class="tag" key=${tag} title=${`Studies with the tag ${tag}`} onClick=${() => onTag(tag)}>${tag}</button>`)}
      <div class="small muted">${study.objective ?? "ask and tell"}</div>
    </td>
    <td><${State} state=${study.state} />${study.blocked && html`<div class="small warn-text" title=${study.blocked}>no worker can serve it</div>`}</td>
    <td style=${{ minWidth: "9rem" }}><${Progress} study=${study} /><div class="small muted">${whole(ended)} of ${count(study.budget.n_trials, "trial")}</div></td>
    <td class="num">${study.best ? number(study.best.value) : study.directions.length > 1 ? html`<span class="muted">front</span>` : "–"}<div class="small muted">${study.metric ?? ""}</div></td>
    <td><${Course} study=${study} /></td>
    <td class="num">${study.counts.FAIL ? html`<span class="bad-text">${whole(study.counts.FAIL)}</span>` : "0"}</td>
    <td class="muted">${ago(study.created_at)}</td>
  </tr>`;
}

const courses = new Map(); // by study and number of complete trials, so that a list asks once

/** The best value so far, asked for when the row is seen. */
function Course({ study }) {
  const place = useRef();
  const [values, setValues] = useState(null);
  const key = `${study.uuid}/${study.best?.number}`;
  useEffect(() => {
    if (!study.best || study.directions.length > 1) return undefined;
    const watch = new IntersectionObserver(async ([entry]) => {
      if (!entry.isIntersecting) return;
      watch.disconnect();
      if (!courses.has(key)) courses.set(key, improvements(study));
      setValues(await courses.get(key));
    });
    watch.observe(place.current);
    return () => watch.disconnect();
  }, [key]);
  return html`<span ref=${place}>
    ${values ? html`<${Sparkline} values=${values} isStepped label=${`Best value so far, ${number(values[0])} to ${number(values[values.length - 1])}`} />` : html`<span class="muted small">–</span>`}
  </span>`;
}

/** The best value at evenly spread trials, from the trials that improved it. */
async function improvements(study) {
  try {
    const found = await get(studyPath(study.name, "history"), { limit: SPARK_POINTS });
    const last = Math.max(study.n_started, ...found.improvements.map(({ number: trial }) => trial)) || 1;
    return Array.from({ length: SPARK_POINTS }, (_, index) => {
      const until = (index / (SPARK_POINTS - 1)) * last;
      const before = found.improvements.filter(({ number: trial }) => trial <= until);
      return before.length ? before[before.length - 1].value : NaN;
    });
  } catch {
    return [];
  }
}
