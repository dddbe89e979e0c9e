// The page: who looks at it, the frame around its views, and which view stands where.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { get } from "./api.js";
import { Dialog } from "./dialogs.js";
import { Frame, Session } from "./loading.js";
import { Fault, Loading } from "./parts.js";
import { keepPlace, placeOf, takeUpPlace, toLaunch, toStudies, toWorkers } from "./place.js";
import { THEMES, chooseTheme, chosenTheme } from "./theme.js";
import { LaunchView } from "./launch.js";
import { StudiesView } from "./studies.js";
import { StudyView } from "./study.js";
import { TrialView } from "./trial.js";
import { WorkersView } from "./workers.js";

const VIEWS = { studies: StudiesView, study: StudyView, trial: TrialView, workers: WorkersView, launch: LaunchView };
const INCLUDED = { reader: ["reader"], operator: ["reader", "operator"], admin: ["reader", "operator", "admin"] };
const NOTICE_MS = 8000;

function usePlace() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const moved = () => setHash(location.hash);
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return useMemo(() => placeOf(hash), [hash]);
}

function useNotices() {
  const [notices, setNotices] = useState([]);
  const drop = useCallback((id) => setNotices((old) => old.filter((notice) => notice.id !== id)), []);
  const tell = useCallback((text, tone = "good") => {
    const id = Math.random();
    setNotices((old) => [...old.slice(-3), { id, text, tone }]);
    setTimeout(() => drop(id), NOTICE_MS);
  }, []);
  return { notices, tell, drop };
}

function App({ session }) {
  const place = usePlace();
  const [live, setLive] = useState("");
  const [question, setQuestion] = useState(null);
  const [isOver, setOver] = useState(false);
  const { notices, tell, drop } = useNotices();
  const main = useRef();
  const frame = useMemo(
    () => ({
      setLive,
      tell,
      askPerson: (asked, onDone) => setQuestion({ asked, onDone }),
      report: (error) => error.status === 401 && setOver(true),
    }),
    [],
  );
  const view = `${place.view}/${place.study ?? ""}/${place.number ?? ""}`;
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) main.current.focus();
    isFirst.current = false;
    scrollTo(0, 0);
  }, [view]);
  const closed = (done) => {
    const { onDone } = question;
    setQuestion(null);
    if (done) tell(done);
    if (done) onDone?.();
  };
  const View = VIEWS[place.view];
  return html`<${Session.Provider} value=${session}><${Frame.Provider} value=${frame}>
    <${Bar} view=${place.view} live=${live} session=${session} />
    <main id="main" tabindex="-1" ref=${main}>
      ${isOver && html`<${SessionOver} />`}
      <${View} key=${view} ...${place} />
    </main>
    <div class="notices" role="status" aria-live="polite">
      ${notices.map(
        ({ id, text, tone }) => html`<div key=${id} class="notice ${tone}"><span>${text}</span>
          <button type="button" class="bare" aria-label="Close this message" onClick=${() => drop(id)}>×</button></div>`,
      )}
    </div>
    ${question && html`<${Dialog} question=${question.asked} onClose=${closed} />`}
  <//><//>`;
}

function SessionOver() {
  return html`<div class="notice warn" role="alert">This session is over.${" "}
    <a href="login?next=/" onClick=${keepPlace}>Log in again</a>; you come back to this place.</div>`;
}

const LIVE_WORDS = { live: ["on", "Live"], waiting: ["off", "Reconnecting …"], "": ["", ""] };

function Bar({ view, live, session }) {
  const [tone, word] = LIVE_WORDS[live];
  const link = (to, views, label) =>
    html`<a href=${to} aria-current=${views.includes(view) ? "page" : undefined}>${label}</a>`;
  return html`<header class="bar"><div>
    <a class="brand" href=${toStudies}><img src="console/icon.svg" alt="" />hpo</a>
    <nav aria-label="Views">
      ${link(toStudies, ["studies", "study", "trial"], "Studies")}
      ${link(toWorkers, ["workers"], "Workers")}
      ${session.can("operator") && link(toLaunch, ["launch"], "New study")}
    </nav>
    <div class="end">
      <span class=${word && `live ${tone}`} role="status">${word}</span>
      <a class="plain muted small" href="dashboard">Optuna dashboard</a>
      <a class="plain muted small" href="docs">API</a>
      <${ThemeSwitch} />
      <${Account} session=${session} />
    </div>
  </div></header>`;
}

function ThemeSwitch() {
  const [theme, setTheme] = useState(chosenTheme());
  const choose = (event) => {
    chooseTheme(event.target.value);
    setTheme(event.target.value);
  };
  return html`<label class="small"><span class="hidden">Colours</span>
    <select value=${theme} onChange=${choose}>${THEMES.map((name) => html`<option key=${name} value=${name}>${name === "system" ? "Auto" : name[0].toUpperCase() + name.slice(1)}</option>`)}</select>
  </label>`;
}

function Account({ session }) {
  if (session.name === null) {
    return html`<span class="small muted" title="There is no token yet, so everybody who reaches the service may do everything.">open service</span>`;
  }
  return html`<span class="small"><span class="muted">${session.name} · ${session.role}</span>${" "}
    ${session.is_session && html`<form method="post" action="logout"><button class="bare small">Log out</button></form>`}
  </span>`;
}

async function start(root) {
  takeUpPlace();
  render(html`<main><${Loading} /></main>`, root);
  try {
    const found = await get("v1/session");
    const session = { ...found, can: (needed) => (INCLUDED[found.role] ?? []).includes(needed) };
    render(html`<${App} session=${session} />`, root);
  } catch (error) {
    if (error.status === 401) location.assign("login?next=/");
    else {
      render(html`<main><${Fault} error=${error} /></main>`, root);
      setTimeout(() => start(root), 3000);
    }
  }
}

start(document.getElementById("app"));
