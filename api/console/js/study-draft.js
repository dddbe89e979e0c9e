// A study that is being written: its fields as they are typed, and the document they make.

export const SAMPLERS = ["tpe", "random", "grid", "cmaes", "gp", "qmc", "nsgaii"];
export const PRUNERS = ["median", "percentile", "successive_halving", "hyperband", "patient", "threshold", "wilcoxon", "none"];
export const TYPES = ["float", "int", "categorical", "constant"];
/** Whole numbers and limits that most studies leave out. */
export const LIMITS = {
  max_parallel_trials: "Trials at a time",
  max_failed_trials: "Failed trials before the study fails",
  timeout_seconds: "Seconds for the study",
  trial_timeout_seconds: "Seconds for a trial",
  no_progress_seconds: "Seconds without a report",
  max_steps: "Steps of a trial",
  seed: "Seed",
  priority: "Priority",
  keep_models: "Models to keep",
};

export const EMPTY = {
  name: "",
  objective: "",
  n_trials: "20",
  direction: "",
  metric: "",
  sampler: { name: "tpe", options: "" },
  pruner: { name: "median", options: "" },
  space: [],
  settings: [],
  limits: {},
  tags: "",
  notes: "",
  directions: null,
  metrics: null,
};

let nextKey = 0;

/** A parameter as its row holds it: every field is the text that stands there. */
export function paramOf(name, parameter) {
  const told = (found) => (found === undefined || found === null ? "" : String(found));
  return {
    key: ++nextKey,
    name,
    type: parameter.type ?? "float",
    low: told(parameter.low),
    high: told(parameter.high),
    step: parameter.type === "int" && parameter.step === 1 ? "" : told(parameter.step),
    log: Boolean(parameter.log),
    choices: (parameter.choices ?? []).map((choice) => JSON.stringify(choice)).join(", "),
    value: parameter.value === undefined ? "" : JSON.stringify(parameter.value),
    when: parameter.when ? JSON.stringify(parameter.when) : "",
  };
}

export function settingOf(name, value) {
  return { key: ++nextKey, name, value: JSON.stringify(value) };
}

function optionsOf({ name, ...options }) {
  return { name, options: Object.entries(options).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ") };
}

/** What an objective says of itself, laid under what was written already. */
export function withOffer(draft, offer) {
  return {
    ...draft,
    objective: offer.objective,
    direction: offer.direction ?? draft.direction,
    metric: offer.metric ?? draft.metric,
    space: Object.entries(offer.space ?? {}).map(([name, parameter]) => paramOf(name, parameter)),
    settings: Object.entries(offer.settings).map(([name, value]) => settingOf(name, value)),
  };
}

/** A draft like a study that exists, under another name. */
export function draftOf(study) {
  const limits = { ...study.budget, max_steps: study.max_steps, priority: study.priority || undefined, keep_models: study.keep_models };
  const several = study.directions.length > 1;
  return {
    ...EMPTY,
    name: `${study.name}-2`,
    objective: study.objective ?? "",
    n_trials: String(study.budget.n_trials),
    direction: study.direction ?? "",
    metric: study.metric ?? "",
    directions: several ? study.directions : null,
    metrics: several && study.metrics.length ? study.metrics : null,
    sampler: optionsOf(study.sampler),
    pruner: optionsOf(study.pruner),
    space: Object.entries(study.space ?? {}).map(([name, parameter]) => paramOf(name, parameter)),
    settings: Object.entries(study.settings).map(([name, value]) => settingOf(name, value)),
    limits: Object.fromEntries(Object.keys(LIMITS).filter((name) => limits[name] !== null && limits[name] !== undefined).map((name) => [name, String(limits[name])])),
    tags: study.tags.join(", "),
    notes: study.notes,
  };
}

/** A number where the text is one; the text itself otherwise, for the service to say what is wrong. */
function asNumber(text) {
  const trimmed = text.trim();
  return trimmed !== "" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

/** JSON where the text is some, else the text: `adam` is as good as `"adam"`. */
export function asValue(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text.trim();
  }
}

/** Splits at commas that stand outside brackets and quotes. */
export function listOf(text) {
  const found = text.match(/(?:"(?:\\.|[^"\\])*"|\[[^\]]*\]|\{[^}]*\}|[^,])+/g) ?? [];
  return found.map((part) => part.trim()).filter(Boolean);
}

function paramDocument(row) {
  const conditions = row.when.trim() ? { when: asValue(row.when) } : {};
  if (row.type === "categorical") return { type: row.type, choices: listOf(row.choices).map(asValue), ...conditions };
  if (row.type === "constant") return { type: row.type, value: asValue(row.value), ...conditions };
  const found = { type: row.type, ...conditions };
  for (const name of ["low", "high", "step"]) if (row[name].trim()) found[name] = asNumber(row[name]);
  if (row.log) found.log = true;
  return found;
}

function algorithmDocument({ name, options }) {
  const pairs = listOf(options).map((part) => {
    const [key, ...rest] = part.split("=");
    return [key.trim(), asValue(rest.join("="))];
  });
  return pairs.length ? { name, ...Object.fromEntries(pairs) } : name;
}

/** The study document as POST /v1/studies takes it; what was left empty is left out. */
export function documentOf(draft) {
  const found = { name: draft.name.trim(), n_trials: asNumber(draft.n_trials) };
  const several = draft.directions !== null;
  for (const name of ["objective", ...(several ? [] : ["direction", "metric"])]) if (draft[name].trim()) found[name] = draft[name].trim();
  if (several) found.directions = draft.directions;
  if (several && draft.metrics) found.metrics = draft.metrics;
  if (draft.space.length) found.space = Object.fromEntries(draft.space.map((row) => [row.name.trim(), paramDocument(row)]));
  const settings = draft.settings.filter((row) => row.name.trim());
  if (settings.length) found.settings = Object.fromEntries(settings.map((row) => [row.name.trim(), asValue(row.value)]));
  found.sampler = algorithmDocument(draft.sampler);
  found.pruner = algorithmDocument(draft.pruner);
  for (const [name, text] of Object.entries(draft.limits)) if (text.trim()) found[name] = asNumber(text);
  if (draft.tags.trim()) found.tags = listOf(draft.tags);
  if (draft.notes.trim()) found.notes = draft.notes;
  return found;
}

/**
 * Puts each fault beside the field it names, or beside the nearest one around it.
 * @param {{field: string, message: string}[]} errors
 * @param {Set<string>} fields the fields that the form has
 */
export function faultsByField(errors, fields) {
  const found = new Map();
  const rest = [];
  for (const { field, message } of errors) {
    let near = field;
    while (near && !fields.has(near)) near = near.includes(".") ? near.slice(0, near.lastIndexOf(".")) : "";
    if (!near) rest.push({ field, message });
    else found.set(near, [...(found.get(near) ?? []), near === field ? message : `${field.slice(near.length + 1)} ${message}`]);
  }
  return { found, rest };
}
