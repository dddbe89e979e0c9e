// What may be done to a study or a trial: when, by whom, and what a person is asked before.

import { html } from "../vendor/preact-htm.js";
import { newKey, send, studyPath } from "./api.js";
import { useFrame, useSession } from "./loading.js";
import { toStudies, toTrial } from "./place.js";

const ENDED = ["completed", "stopped", "failed"];

function post(study, verb, body) {
  return send("POST", studyPath(study.name, verb), body);
}

/** @type {Record<string, {label: string, role?: string, isDanger?: boolean, suits: (study: object) => boolean, question: (study: object) => object}>} */
const STUDY_ACTIONS = {
  pause: {
    label: "Pause",
    suits: (study) => study.state === "running",
    question: (study) => ({
      title: `Pause ${study.name}?`,
      text: "No trial begins any more. Running ones write a checkpoint at their next report and wait; resume lets them go on from there.",
      verb: "Pause",
      act: async () => (await post(study, "pause"), `${study.name} is paused.`),
    }),
  },
  resume: {
    label: "Resume",
    suits: (study) => study.state === "paused" && !study.archived_at,
    question: (study) => ({
      title: `Resume ${study.name}?`,
      text: "Its trials go on from their checkpoints, and new ones begin.",
      verb: "Resume",
      act: async () => (await post(study, "resume"), `${study.name} goes on.`),
    }),
  },
  stop: {
    label: "Stop",
    suits: (study) => ["running", "paused"].includes(study.state),
    question: (study) => ({
      title: `Stop ${study.name}?`,
      text: "No trial begins any more. Running ones end as they would; then the study is stopped.",
      verb: "Stop",
      act: async () => (await post(study, "stop"), `${study.name} stops when its running trials have ended.`),
    }),
  },
  cancel: {
    label: "Cancel",
    isDanger: true,
    suits: (study) => ["running", "paused", "stopping"].includes(study.state),
    question: (study) => ({
      title: `Cancel ${study.name}?`,
      text: "No trial begins any more, and running ones end as failed, cancelled, at their next report. What they have trained is lost.",
      verb: "Cancel the study",
      isDanger: true,
      fields: [{ name: "now", label: "End running trials at once, without waiting for a report", type: "checkbox" }],
      act: async ({ now }) => (await post(study, "cancel", { now }), `${study.name} is being cancelled.`),
    }),
  },
  extend: {
    label: "Extend",
    suits: (study) => study.state !== "deleting" && !study.archived_at,
    question: (study) => ({
      title: `Extend ${study.name}`,
      text: `It may have ${study.budget.n_trials} trials now. More of them let an ended study go on.`,
      verb: "Extend",
      fields: [{ name: "n_trials", label: "Trials in all", type: "number", value: study.budget.n_trials + 20, min: 1, isRequired: true }],
      act: async ({ n_trials }) => (
        await send("PATCH", studyPath(study.name), { n_trials }), `${study.name} may have ${n_trials} trials.`
      ),
    }),
  },
  archive: {
    label: "Archive",
    suits: (study) => !study.archived_at && [...ENDED, "paused"].includes(study.state),
    question: (study) => ({
      title: `Archive ${study.name}?`,
      text: "Lists leave it out unless archived studies are asked for. Nothing is lost, and it can be taken back.",
      verb: "Archive",
      act: async () => (await post(study, "archive"), `${study.name} is archived.`),
    }),
  },
  unarchive: {
    label: "Take out of the archive",
    suits: (study) => Boolean(study.archived_at),
    question: (study) => ({
      title: `List ${study.name} again?`,
      text: "Lists have it again, and it may go on.",
      verb: "Take it out",
      act: async () => (await post(study, "unarchive"), `${study.name} is listed again.`),
    }),
  },
  delete: {
    label: "Delete",
    role: "admin",
    isDanger: true,
    suits: (study) => study.state !== "deleting",
    question: (study) => ({
      title: `Delete ${study.name}?`,
      text: "It goes with its trials, logs, models and checkpoints. This cannot be undone.",
      verb: "Delete for good",
      isDanger: true,
      fields: [{ name: "name", label: `Type its name, ${study.name}, to delete it`, isRequired: true }],
      act: async ({ name }) => {
        if (name !== study.name) throw new Error(`That is not its name: it is ${study.name}.`);
        const force = ENDED.includes(study.state) ? "" : "?force=true";
        await send("DELETE", studyPath(study.name) + force);
        location.hash = toStudies;
        return `${study.name} is being deleted.`;
      },
    }),
  },
};

const TRIAL_ACTIONS = {
  cancel: {
    label: "Cancel",
    isDanger: true,
    suits: (trial) => ["RUNNING", "WAITING"].includes(trial.state),
    question: (study, trial) => ({
      title: `Cancel trial ${trial.number}?`,
      text: "It ends as failed, cancelled, at its next report; the study goes on.",
      verb: "Cancel the trial",
      isDanger: true,
      act: async () => (await send("POST", studyPath(study, "trials", trial.number, "cancel")), `Trial ${trial.number} is being cancelled.`),
    }),
  },
  requeue: {
    label: "Try again",
    suits: (trial) => ["COMPLETE", "PRUNED", "FAIL"].includes(trial.state),
    question: (study, trial) => ({
      title: `Try the parameters of trial ${trial.number} again?`,
      text: "A new trial with the same parameters is enqueued. It counts towards the study's trials.",
      verb: "Enqueue",
      fields: [{ name: "extend", label: "Make room for it if the study has none", type: "checkbox" }],
      act: async ({ extend }) => {
        const path = studyPath(study, "trials", trial.number, "requeue");
        const made = await send("POST", path, { extend }, { "Idempotency-Key": newKey() });
        location.hash = toTrial(study, made.numbers[0]);
        return `Trial ${made.numbers[0]} is enqueued.`;
      },
    }),
  },
  exclude: {
    label: "Exclude",
    suits: (trial) => ["COMPLETE", "PRUNED", "FAIL"].includes(trial.state) && !trial.exclusion,
    question: (study, trial) => ({
      title: `Exclude trial ${trial.number}?`,
      text: "Best, sampling, pruning and analysis leave it out from now on. It stays visible, and can be included again.",
      verb: "Exclude",
      fields: [{ name: "reason", label: "Why", value: "" }],
      act: async ({ reason }) => (
        await send("POST", studyPath(study, "trials", trial.number, "exclude"), reason ? { reason } : {}), `Trial ${trial.number} is excluded.`
      ),
    }),
  },
  include: {
    label: "Include",
    suits: (trial) => Boolean(trial.exclusion),
    question: (study, trial) => ({
      title: `Include trial ${trial.number} again?`,
      text: "It counts for best, sampling, pruning and analysis again.",
      verb: "Include",
      act: async () => (await send("POST", studyPath(study, "trials", trial.number, "include")), `Trial ${trial.number} is included.`),
    }),
  },
};

/** The buttons for what suits a study now; none for those who may only look. */
export function StudyActions({ study, onDone }) {
  return html`<${Buttons} actions=${STUDY_ACTIONS} suits=${(action) => action.suits(study)}
    ask=${(action) => action.question(study)} onDone=${onDone} />`;
}

export function TrialActions({ study, trial, onDone }) {
  return html`<${Buttons} actions=${TRIAL_ACTIONS} suits=${(action) => action.suits(trial)}
    ask=${(action) => action.question(study, trial)} onDone=${onDone} />`;
}

function Buttons({ actions, suits, ask, onDone }) {
  const session = useSession();
  const { askPerson } = useFrame();
  const shown = Object.entries(actions).filter(([, action]) => session.can(action.role ?? "operator") && suits(action));
  if (!shown.length) return null;
  return html`<div class="actions">
    ${shown.map(
      ([name, action]) => html`<button key=${name} type="button" class=${action.isDanger ? "danger" : ""}
        onClick=${() => askPerson(ask(action), onDone)}>${action.label}</button>`,
    )}
  </div>`;
}
