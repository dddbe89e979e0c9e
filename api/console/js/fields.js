// Fields of a form: a label, a control, a hint, and what the service says is wrong with it.

import { createContext, html, useContext } from "../vendor/preact-htm.js";

/** @type {{found: Map<string, string[]>}} faults by field */
export const Faults = createContext({ found: new Map() });

export function useFault(field) {
  return useContext(Faults).found.get(field)?.join("; ") ?? "";
}

/** What a control needs to be read with its fault. */
export function described(id, fault, hint) {
  return {
    id,
    "aria-invalid": fault ? "true" : undefined,
    "aria-describedby": [fault && `${id}-fault`, hint && `${id}-hint`].filter(Boolean).join(" ") || undefined,
  };
}

export function Field({ field, label, hint, children }) {
  const fault = useFault(field);
  const id = `field-${field.replaceAll(".", "-")}`;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children(described(id, fault, hint))}
    ${hint && html`<span class="hint" id="${id}-hint">${hint}</span>`}
    ${fault && html`<span class="fault" id="${id}-fault">${fault}</span>`}
  </div>`;
}

export function TextField({ field, label, hint, value, onChange, ...others }) {
  return html`<${Field} field=${field} label=${label} hint=${hint}>
    ${(known) => html`<input ...${known} value=${value} onInput=${(event) => onChange(event.target.value)} autocomplete="off" ...${others} />`}
  <//>`;
}

export function ChoiceField({ field, label, hint, value, choices, onChange }) {
  return html`<${Field} field=${field} label=${label} hint=${hint}>
    ${(known) => html`<select ...${known} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${choices.map(([key, word]) => html`<option key=${key} value=${key}>${word}</option>`)}
    </select>`}
  <//>`;
}
