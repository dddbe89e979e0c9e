// Numbers, times and states as people read them.

/** JSON carries NaN and infinities as strings. */
export function toNumber(value) {
  return value === null || value === undefined ? null : Number(value);
}

export function number(value, digits = 5) {
  const found = toNumber(value);
  if (found === null) return "–";
  if (Number.isNaN(found)) return "NaN";
  if (!Number.isFinite(found)) return found > 0 ? "∞" : "−∞";
  if (Number.isInteger(found) && Math.abs(found) < 1e9) return whole(found);
  const size = Math.abs(found);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return found.toExponential(digits - 2).replace(/\.?0*e/, "e").replaceAll("-", "−");
  return String(Number(found.toPrecision(digits))).replace("-", "−");
}

export function whole(value) {
  return String(value).replace("-", "−").replace(/\B(?=(\d{3})+(?!\d))/g, " ");
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

/** A parameter, a setting or an attribute. */
export function value(found) {
  if (found === null || found === undefined) return "–";
  if (typeof found === "number") return number(found);
  return typeof found === "string" ? found : JSON.stringify(found);
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = count;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

export function seconds(duration) {
  if (duration === null || Number.isNaN(duration)) return "–";
  if (duration < 1) return `${Math.round(duration * 1000)} ms`;
  if (duration < 10) return `${duration.toFixed(1)} s`;
  if (duration < 120) return `${Math.round(duration)} s`;
  if (duration < 7200) return `${Math.round(duration / 60)} min`;
  return duration < 172800 ? `${(duration / 3600).toFixed(1)} h` : `${Math.round(duration / 86400)} d`;
}

export function between(from, to) {
  return from ? seconds(Math.max(0, (to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000) : "–";
}

export function ago(time) {
  return time ? `${between(time)} ago` : "–";
}

export function when(time) {
  return time ? new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "–";
}

export function moment(time) {
  return time ? new Date(time).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }) : "–";
}

export function clock(time) {
  return new Date(time).toLocaleTimeString();
}

/** "1 trial", "2 trials". */
export function count(n, noun) {
  return `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** Words for states, and the tone of each: which colour stands beside the word. */
export const TONES = {
  running: "busy",
  paused: "warn",
  stopping: "warn",
  completed: "good",
  stopped: "calm",
  failed: "bad",
  deleting: "bad",
  WAITING: "calm",
  RUNNING: "busy",
  COMPLETE: "good",
  PRUNED: "calm",
  FAIL: "bad",
};

export const TRIAL_WORDS = {
  WAITING: "waiting",
  RUNNING: "running",
  COMPLETE: "complete",
  PRUNED: "pruned",
  FAIL: "failed",
};

export const REASONS = {
  objective_error: "the objective raised an error",
  diverged: "its values were no finite numbers",
  out_of_memory: "it did not fit into memory",
  timed_out: "its time was over",
  no_progress: "it went too long without a report",
  lost: "its worker was lost",
  device_error: "its device failed",
  invalid_result: "its result was no valid value",
  cancelled: "it was cancelled",
  preempted: "its worker was stopped",
};

/** Why the pruner ended a trial, from the numbers behind its verdict. */
export function pruneSentence(prune) {
  if (!prune) return "";
  const at = `at step ${prune.step}: ${number(prune.value)}`;
  if (prune.median !== undefined) return `${at} against the median ${number(prune.median)} of ${count(prune.n_trials, "trial")}`;
  if (prune.percentile_value !== undefined) {
    return `${at} against ${number(prune.percentile_value)}, the percentile ${number(prune.percentile)} of ${count(prune.n_trials, "trial")}`;
  }
  if (prune.rung !== undefined) return `${at} was not among the best of rung ${prune.rung}`;
  if (prune.patience !== undefined) return `${at}, no better for ${count(prune.patience, "step")}`;
  if (prune.lower !== undefined || prune.upper !== undefined) {
    return `${at} is beyond ${[prune.lower, prune.upper].filter((bound) => bound !== undefined).map((bound) => number(bound)).join(" and ")}`;
  }
  return at;
}

export function isBetter(value, than, direction) {
  return direction === "maximize" ? value > than : value < than;
}
