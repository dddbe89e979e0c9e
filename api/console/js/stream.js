// Server-sent events of a page: one stream at a time, told in batches, opened again when it breaks.

import { withQuery } from "./api.js";

// The browser names each event by its kind, so each has to be asked for.
export const STUDY_KINDS = [
  ...["study_created", "study_state", "study_budget", "study_labels", "study_archived"],
  ...["study_unarchived", "study_deleted"],
];
export const TRIAL_KINDS = [
  ...["trial_enqueued", "trial_excluded", "trial_included", "trial_started", "trial_ended"],
  ...["attempt_started", "attempt_resumed", "attempt_ended"],
];
const RETRY_MS = 2000;
const LONGEST_RETRY_MS = 30_000;
const BATCH_MS = 120;

export class Stream {
  /**
   * @param {string} path
   * @param {{kinds: string[], onEvents: (events: object[]) => void, onState: (state: string) => void, onRefused: () => void}} wishes
   *   onState hears "live" when the stream is open and "waiting" when it is not.
   */
  constructor(path, wishes) {
    Object.assign(this, { path, ...wishes, waiting: [], lastId: null, timer: 0, retry: 0, pause: RETRY_MS });
    this.open();
  }

  open() {
    const query = { kinds: this.kinds, after: this.lastId };
    const source = new EventSource(withQuery(this.path, query));
    this.source = source;
    source.onopen = () => {
      this.pause = RETRY_MS;
      this.onState("live");
    };
    source.onerror = () => this.broken(source);
    for (const kind of [...this.kinds, "reset"]) source.addEventListener(kind, (event) => this.take(event));
  }

  broken(source) {
    this.onState("waiting");
    if (source.readyState !== EventSource.CLOSED || source !== this.source) return; // it tries again by itself
    this.onRefused();
    this.retry = setTimeout(() => this.open(), this.pause);
    this.pause = Math.min(2 * this.pause, LONGEST_RETRY_MS);
  }

  take(event) {
    this.lastId = event.lastEventId || this.lastId;
    this.waiting.push(JSON.parse(event.data));
    this.timer ||= setTimeout(() => this.tell(), BATCH_MS);
  }

  tell() {
    const events = this.waiting;
    this.waiting = [];
    this.timer = 0;
    this.onEvents(events);
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.retry);
    this.source.close();
  }
}

/**
 * A function that calls another at most once in so many ms, and never while the call before runs.
 * What is asked for meanwhile happens once, afterwards.
 * @param {() => number} pause in ms
 */
export function coalesced(work, pause) {
  let running = false;
  let again = false;
  const start = async () => {
    if (running) {
      again = true;
      return;
    }
    running = true;
    again = false;
    try {
      await work();
    } finally {
      setTimeout(() => {
        running = false;
        if (again) start();
      }, pause());
    }
  };
  return start;
}
