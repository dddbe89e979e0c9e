// Hooks: what a view asks for, how it stays live, and who looks at it.

import { createContext, useCallback, useContext, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { get } from "./api.js";
import { Stream } from "./stream.js";

/** @type {{role: string, name: string|null, can: (needed: string) => boolean}} */
export const Session = createContext(null);
/** What every view may tell the frame around it: notices, and whether it is live. */
export const Frame = createContext(null);

export function useSession() {
  return useContext(Session);
}

export function useFrame() {
  return useContext(Frame);
}

/** What `load` answers; the old stays until the new is there, and an error stands beside it. */
export function useLoaded(load, deps) {
  const [state, setState] = useState({ data: undefined, error: null });
  const turns = useRef(0);
  const { report } = useFrame();
  const reload = useCallback(async () => {
    const turn = ++turns.current;
    try {
      const data = await load();
      if (turn === turns.current) setState({ data, error: null });
    } catch (error) {
      if (turn !== turns.current) return;
      report(error);
      setState((old) => ({ data: old.data, error }));
    }
  }, deps);
  useEffect(() => {
    reload();
    return () => (turns.current += 1);
  }, [reload]);
  return { ...state, reload };
}

/** Opens the page's stream for as long as the view stands; `onEvents` gets them in batches. */
export function useStream(path, kinds, onEvents, onOpen) {
  const { setLive, report } = useFrame();
  const latest = useRef({});
  latest.current = { onEvents, onOpen };
  useEffect(() => {
    let wasOpen = false;
    const stream = new Stream(path, {
      kinds,
      onEvents: (events) => latest.current.onEvents(events),
      // The browser does not say why; a session that is over shows itself here.
      onRefused: () => get("v1/session").catch(report),
      onState: (state) => {
        setLive(state);
        if (state === "live" && wasOpen) latest.current.onOpen?.();
        wasOpen ||= state === "live";
      },
    });
    return () => {
      stream.close();
      setLive("");
    };
  }, [path]);
}

/** Calls `work` every so often, and not while nobody looks at the page. */
export function useEvery(ms, work, deps = []) {
  const latest = useRef(work);
  latest.current = work;
  useEffect(() => {
    const timer = setInterval(() => document.hidden || latest.current(), ms);
    return () => clearInterval(timer);
  }, [ms, ...deps]);
}

/** Whether an element has come into view, or is about to; what lies below asks for nothing yet. */
export function useSeen() {
  const place = useRef();
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver(([entry]) => entry.isIntersecting && setSeen(true), { rootMargin: "200px" });
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  return [place, isSeen];
}

/** A value that follows another one after it has rested for a moment. */
export function useRested(value, ms = 300) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return rested;
}
