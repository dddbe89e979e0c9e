// A study as its page holds it: the document, its trials in columns, its newest curves.
//
// Events say that something has changed; what has changed is asked for, at most once in a while.
// Reports alone are taken from the events themselves, so that a curve grows as it is reported.

import { get, studyPath } from "./api.js";
import { toNumber } from "./format.js";
import { coalesced } from "./stream.js";

const REFRESH_MS = 1000;
const LONG_REFRESH_MS = 10_000; // where an old trial is still open, and much is asked for with it
const MUCH = 2000;
const CURVES_MS = 2500;
const COLUMNS = 10_000;
const MAX_COLUMNS = 50_000;
const OPEN = new Set(["WAITING", "RUNNING"]);

export class StudyModel {
  constructor(name, onChange, onError) {
    Object.assign(this, { name, onChange, onError, study: null, columns: null, curves: null, error: null });
    this.version = 0;
    this.isClosed = false;
    this.refreshSoon = coalesced(() => this.guarded(() => this.refresh()), () => this.pause());
    this.curvesSoon = coalesced(() => this.guarded(() => this.loadCurves()), () => CURVES_MS);
  }

  async load() {
    await this.guarded(async () => {
      const asked = this.loadColumns(null);
      asked.catch(() => {}); // it is waited for below, unless there is no such study
      this.study = await get(studyPath(this.name));
      this.changed();
      await asked;
      await this.loadCurves();
    });
  }

  async guarded(work) {
    try {
      await work();
      this.error = null;
    } catch (error) {
      this.error = error;
      this.onError(error);
    }
    this.changed();
  }

  changed() {
    this.version += 1;
    if (!this.isClosed) this.onChange(this.version);
  }

  async refresh() {
    const [study] = await Promise.all([get(studyPath(this.name)), this.loadColumns(this.firstOpen())]);
    this.study = study;
  }

  /** The place beyond which trials may have changed: before the first one that has not ended. */
  firstOpen() {
    if (!this.columns) return null;
    const { numbers, states } = this.columns;
    const place = states.findIndex((state) => OPEN.has(state));
    const last = place < 0 ? numbers[numbers.length - 1] : numbers[place] - 1;
    return last === undefined || last < 0 ? null : last;
  }

  pause() {
    const numbers = this.columns?.numbers ?? [];
    return (numbers[numbers.length - 1] ?? 0) - (this.firstOpen() ?? 0) > MUCH ? LONG_REFRESH_MS : REFRESH_MS;
  }

  async loadColumns(after) {
    let found = null;
    let from = after;
    do {
      const page = await get(studyPath(this.name, "columns"), { after: from, limit: COLUMNS });
      found = found ? joined(found, page, from) : page;
      from = page.next;
    } while (from !== null && found.numbers.length < MAX_COLUMNS);
    this.columns = after === null || !this.columns ? found : joined(this.columns, found, after);
    this.changed();
  }

  async loadCurves() {
    if (this.study.directions.length > 1) return;
    const found = await get(studyPath(this.name, "curves"), { limit: 60 });
    for (const curve of found.trials) curve.values = curve.values.map(toNumber);
    if (found.thresholds) found.thresholds.values = found.thresholds.values.map(toNumber);
    this.curves = found;
  }

  /** Takes a batch of events in. */
  hear(events) {
    let isNews = false;
    for (const event of events) {
      if (event.kind === "report") this.grow(event);
      else isNews = true;
    }
    if (isNews) this.refreshSoon();
    if (events.some(({ kind }) => kind !== "report" && kind !== "study_labels")) this.curvesSoon();
    this.changed();
  }

  grow({ number, data }) {
    if (!this.curves) return;
    let curve = this.curves.trials.find((found) => found.number === number);
    if (!curve) {
      curve = { number, state: "RUNNING", is_best: false, reason: null, prune: null, steps: [], values: [] };
      this.curves.trials.push(curve);
    }
    const last = curve.steps[curve.steps.length - 1];
    if (last === undefined || data.step > last) {
      curve.steps.push(data.step);
      curve.values.push(toNumber(data.value));
    }
  }

  close() {
    this.isClosed = true;
  }
}

/** Columns up to a number, followed by others that begin after it. */
function joined(old, news, after) {
  const keep = after === null ? 0 : upTo(old.numbers, after);
  const both = (a, b) => a.slice(0, keep).concat(b);
  const names = new Set([...Object.keys(old.params), ...Object.keys(news.params)]);
  const column = (found, name) => found.params[name] ?? Array(found.numbers.length).fill(null);
  return {
    ...news,
    numbers: both(old.numbers, news.numbers),
    states: both(old.states, news.states),
    values: old.values.map((values, index) => both(values, news.values[index])),
    params: Object.fromEntries([...names].map((name) => [name, both(column(old, name), column(news, name))])),
    left_out: old.left_out.filter((number) => number <= after).concat(news.left_out),
  };
}

/** How many of the ascending numbers are at or below one. */
function upTo(numbers, last) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= last) low = middle + 1;
    else high = middle;
  }
  return low;
}
