// What a trial writes: the last lines, and further ones as they come.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.js";
import { get, studyPath } from "./api.js";
import { useEvery, useFrame } from "./loading.js";
import { Card } from "./parts.js";

const TAIL = 500;
const MAX_CHARACTERS = 400_000;
const LOOK_AGAIN_MS = 1500;

export function Log({ name, trial }) {
  const [pieces, setPieces] = useState(null);
  const [follows, setFollows] = useState(true);
  const place = useRef(null);
  const box = useRef();
  const { report } = useFrame();
  const path = studyPath(name, "trials", trial.number, "log");
  const isOpen = trial.state === "RUNNING" || trial.state === "WAITING";
  const take = async () => {
    try {
      const query = place.current === null ? { tail: TAIL } : { after: place.current };
      const { items } = await get(path, query);
      if (items.length) place.current = items[items.length - 1].id;
      setPieces((old) => (items.length || old === null ? shortened([...(old ?? []), ...items]) : old));
    } catch (error) {
      report(error);
    }
  };
  useEffect(() => {
    take();
  }, [path, trial.state]);
  useEvery(LOOK_AGAIN_MS, () => isOpen && take(), [isOpen]);
  useLayoutEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [pieces, follows]);
  const text = (pieces ?? []).map((piece) => piece.text).join("");
  return html`<${Card} id="log" title="Log" end=${html`<label class="check"><input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} /> follow the end</label>`}>
    ${text
      ? html`<pre class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log of the trial">${text}</pre>`
      : html`<p class="muted">${pieces === null ? "Loading …" : isOpen ? "It has written nothing so far; what it writes appears here." : "It wrote nothing."}</p>`}
  <//>`;
}

/** The newest pieces: a page does not hold a log of any length. */
function shortened(pieces) {
  let total = 0;
  let first = pieces.length;
  while (first > 0 && total < MAX_CHARACTERS) total += pieces[--first].text.length;
  return first > 0 ? pieces.slice(first) : pieces;
}
