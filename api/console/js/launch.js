// A new study: picked from what workers offer, checked by the service while it is written.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { get, newKey, send, studyPath } from "./api.js";
import { ChoiceField, Faults, Field, TextField } from "./fields.js";
import { useFrame, useLoaded, useRested, useSession } from "./loading.js";
import { Card, Fault, Loading, Title } from "./parts.js";
import { toStudies, toStudy } from "./place.js";
import { SettingsEditor, SpaceEditor } from "./space-editor.js";
import { EMPTY, LIMITS, PRUNERS, SAMPLERS, documentOf, draftOf, faultsByField, withOffer } from "./study-draft.js";

const CHECK_MS = 300;

export function LaunchView({ query }) {
  const session = useSession();
  const from = query.get("from");
  const { data, error } = useLoaded(
    async () => {
      const [offers, like] = await Promise.all([get("v1/objectives"), from ? get(studyPath(from)) : null]);
      return { offers: offers.items, draft: like ? draftOf(like) : EMPTY };
    },
    [from],
  );
  if (!session.can("operator")) {
    return html`<${Title} text="New study" /><div class="notice">Your role, ${session.role}, may look at studies and not launch them. An operator's token may.</div>`;
  }
  return html`<div><p class="crumbs"><a href=${toStudies}>Studies</a></p><${Title} text="New study" /></div>
    <${Fault} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<${Form} offers=${data.offers} first=${data.draft} />`}`;
}

/** The service's own verdict on a document, a moment after it has rested. */
function useCheck(text) {
  const rested = useRested(text, CHECK_MS);
  const [found, setFound] = useState({ errors: [], study: null, text: "" });
  useEffect(() => {
    const stop = new AbortController();
    send("POST", "v1/studies/check", JSON.parse(rested), {}, stop.signal)
      .then((reply) => setFound({ ...reply, text: rested }))
      .catch((error) => error.name !== "AbortError" && setFound({ errors: error.errors ?? [], failure: error, text: rested }));
    return () => stop.abort();
  }, [rested]);
  return { ...found, isCurrent: found.text === text };
}

function fieldsOf(draft) {
  const params = draft.space.flatMap((row) => {
    const at = `space.${row.name.trim()}`;
    return [at, ...["type", "low", "high", "step", "log", "choices", "value", "when"].map((part) => `${at}.${part}`)];
  });
  const settings = draft.settings.map((row) => `settings.${row.name.trim()}`);
  return new Set(["name", "objective", "n_trials", "direction", "metric", "sampler", "pruner", "space", "settings", "tags", "notes", ...Object.keys(LIMITS), ...params, ...settings]);
}

function Form({ offers, first }) {
  const [draft, setDraft] = useState(first);
  const [touched, setTouched] = useState(false);
  const [failure, setFailure] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const key = useRef(newKey());
  const { tell } = useFrame();
  const text = useMemo(() => JSON.stringify(documentOf(draft)), [draft]);
  const check = useCheck(text);
  const errors = useMemo(() => shownErrors(check.errors, draft, touched), [check, draft, touched]);
  const faults = useMemo(() => faultsByField(errors, fieldsOf(draft)), [errors, draft]);
  const change = (changes) => setDraft((old) => ({ ...old, ...changes }));
  const pick = (objective) => {
    const offer = offers.find((found) => found.objective === objective);
    setDraft((old) => (offer ? withOffer(old, offer) : { ...old, objective }));
  };
  const submit = async (event) => {
    event.preventDefault();
    setTouched(true);
    if (check.isCurrent && check.errors.length) return focusFirst(event.target);
    setBusy(true);
    try {
      const made = await send("POST", "v1/studies", JSON.parse(text), { "Idempotency-Key": key.current });
      tell(`${made.name} is launched.`);
      location.hash = toStudy(made.name);
    } catch (error) {
      key.current = newKey();
      setFailure(error);
      setBusy(false);
    }
    return undefined;
  };
  return html`<${Faults.Provider} value=${faults}><form onSubmit=${submit} novalidate style=${{ display: "grid", gap: "1rem" }}>
    <${Basics} draft=${draft} offers=${offers} change=${change} pick=${pick} />
    <${Card} id="space" title="Space"><${SpaceEditor} rows=${draft.space} onChange=${(space) => change({ space })} /><//>
    <${Card} id="settings" title="Settings of the objective"><${SettingsEditor} rows=${draft.settings} onChange=${(settings) => change({ settings })} /><//>
    <${Search} draft=${draft} change=${change} />
    <${More} draft=${draft} change=${change} />
    <${Rest} rest=${faults.rest} />
    <${Fault} error=${failure ?? check.failure} />
    <div class="head">
      <button class="main" disabled=${isBusy}>Launch</button>
      <p role="status" aria-live="polite" class=${errors.length ? "warn-text" : "muted"}>${verdictOf(check, errors)}</p>
    </div>
    <${Preview} text=${text} />
  </form><//>`;
}

/** Nothing is at fault before one has begun, and no empty name before one has tried to launch. */
function shownErrors(errors, draft, touched) {
  if (!touched && !draft.objective && !draft.name) return [];
  return touched ? errors : errors.filter(({ field }) => field !== "name" || draft.name);
}

function focusFirst(form) {
  form.querySelector("[aria-invalid=true]")?.focus();
}

function verdictOf(check, errors) {
  if (check.failure) return "";
  if (errors.length === 1) return "One field is not as the service takes it yet.";
  if (errors.length) return `${errors.length} fields are not as the service takes them yet.`;
  if (check.exists) return "The same study is there already; launching finds it again.";
  return check.study ? "The service takes it as it is." : "";
}

function Basics({ draft, offers, change, pick }) {
  const offer = offers.find((found) => found.objective === draft.objective);
  const choices = [["", "none: programs ask and tell"], ...offers.map((found) => [found.objective, found.objective])];
  if (draft.objective && !offer) choices.push([draft.objective, `${draft.objective} (no worker offers it)`]);
  const hint = offer?.summary || (offers.length ? "What the workers that are connected can run." : "No worker is connected, so there is nothing to choose from yet.");
  return html`<${Card} id="basics" title="What to search">
    <div class="fields">
      <${ChoiceField} field="objective" label="Objective" hint=${hint} value=${draft.objective} choices=${choices} onChange=${pick} />
      <${TextField} field="name" label="Name" hint="Letters, digits, dots, dashes, underscores." value=${draft.name} onChange=${(name) => change({ name })} required />
      <${TextField} field="n_trials" label="Trials" hint="A study ends with exactly so many." value=${draft.n_trials} onChange=${(n_trials) => change({ n_trials })} inputmode="numeric" />
      ${draft.directions
        ? html`<div class="field"><span class="label">Directions</span><span>${draft.directions.join(", ")}</span></div>`
        : html`<${ChoiceField} field="direction" label="Direction" value=${draft.direction} onChange=${(direction) => change({ direction })}
            choices=${[["", "as the objective says"], ["minimize", "minimize"], ["maximize", "maximize"]]} />
          <${TextField} field="metric" label="Metric" value=${draft.metric} onChange=${(metric) => change({ metric })} />`}
    </div>
  <//>`;
}

function Search({ draft, change }) {
  const set = (kind, changes) => change({ [kind]: { ...draft[kind], ...changes } });
  return html`<${Card} id="search" title="Search and pruning"><div class="fields">
    ${[["sampler", "Sampler", SAMPLERS], ["pruner", "Pruner", PRUNERS]].map(
      ([kind, label, names]) => html`
        <${ChoiceField} key=${kind} field=${kind} label=${label} value=${draft[kind].name} choices=${names.map((name) => [name, name])} onChange=${(name) => set(kind, { name, options: "" })} />
        <${Field} key=${`${kind}-options`} field=${`${kind}-options`} label=${`Options of the ${kind}`} hint="Optuna's names, such as n_startup_trials=5">
          ${(known) => html`<input ...${known} value=${draft[kind].options} autocomplete="off" onInput=${(event) => set(kind, { options: event.target.value })} />`}
        <//>`,
    )}
  </div><//>`;
}

function More({ draft, change }) {
  return html`<details class="card"><summary>Limits, tags and notes</summary>
    <div class="fields">
      ${Object.entries(LIMITS).map(
        ([name, label]) => html`<${TextField} key=${name} field=${name} label=${label} value=${draft.limits[name] ?? ""} inputmode="decimal" onChange=${(text) => change({ limits: { ...draft.limits, [name]: text } })} />`,
      )}
      <${TextField} field="tags" label="Tags" hint="With commas between." value=${draft.tags} onChange=${(tags) => change({ tags })} />
      <${Field} field="notes" label="Notes">${(known) => html`<textarea ...${known} rows="3" value=${draft.notes} onInput=${(event) => change({ notes: event.target.value })}></textarea>`}<//>
    </div>
  </details>`;
}

function Rest({ rest }) {
  if (!rest.length) return null;
  return html`<ul class="notice bad" role="alert">${rest.map(({ field, message }) => html`<li key=${field}><strong>${field}</strong> ${message}</li>`)}</ul>`;
}

function Preview({ text }) {
  const pretty = JSON.stringify(JSON.parse(text), null, 2);
  const command = `curl -sf ${new URL("v1/studies", document.baseURI)} --json '${text.replaceAll("'", "'\\''")}'`;
  return html`<details class="card"><summary>The same as a document and as a request</summary>
    <div style=${{ display: "grid", gap: ".6rem" }}>
      <pre class="log" tabindex="0" aria-label="Study document">${pretty}</pre>
      <pre class="log" tabindex="0" aria-label="Request">${command}</pre>
    </div>
  </details>`;
}
