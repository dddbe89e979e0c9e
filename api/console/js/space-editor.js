// The parameters of a new study, one row each, and its settings.

import { html } from "../vendor/preact-htm.js";
import { described, useFault } from "./fields.js";
import { TYPES, paramOf, settingOf } from "./study-draft.js";

/** A control with its label above it; its fault stands at the end of the row. */
function Cell({ row, part, label, kind = "", faults, children }) {
  const id = `param-${row.key}-${part}`;
  return html`<div class="field ${kind}"><label for=${id}>${label}</label>
    ${children({ ...described(id, faults[part] ? " " : "", ""), "aria-describedby": faults.any ? `param-${row.key}-fault` : undefined })}</div>`;
}

function useRowFaults(row) {
  const at = `space.${row.name.trim()}`;
  const parts = ["type", "low", "high", "step", "log", "choices", "value", "when"];
  const told = Object.fromEntries(parts.map((part) => [part, useFault(`${at}.${part}`)]));
  const whole = useFault(at);
  const sentences = [whole, ...parts.map((part) => told[part] && withPart(part, told[part]))].filter(Boolean);
  return { ...told, name: whole, any: sentences.join("; ") };
}

/** Some sentences begin with their field already. */
function withPart(part, sentence) {
  return sentence.startsWith(part) ? sentence : `${part} ${sentence}`;
}

function Param({ row, change, remove }) {
  const faults = useRowFaults(row);
  const text = (part, label, kind) => html`<${Cell} row=${row} part=${part} label=${label} kind=${kind} faults=${faults}>
    ${(known) => html`<input ...${known} value=${row[part]} inputmode=${kind ? undefined : "decimal"} autocomplete="off" onInput=${(event) => change({ [part]: event.target.value })} />`}
  <//>`;
  const named = row.name.trim() || "this parameter";
  return html`<div class="param" role="group" aria-label=${`Parameter ${named}`}>
    <${Cell} row=${row} part="name" label="Name" faults=${faults}>
      ${(known) => html`<input ...${known} value=${row.name} autocomplete="off" onInput=${(event) => change({ name: event.target.value })} />`}
    <//>
    <${Cell} row=${row} part="type" label="Type" faults=${faults}>
      ${(known) => html`<select ...${known} value=${row.type} onChange=${(event) => change({ type: event.target.value })}>${TYPES.map((type) => html`<option key=${type} value=${type}>${type}</option>`)}</select>`}
    <//>
    ${row.type === "categorical" && text("choices", "Choices, with commas between", "wide")}
    ${row.type === "constant" && text("value", "Value", "wide")}
    ${["float", "int"].includes(row.type) && [text("low", "Low"), text("high", "High"), text("step", "Step")]}
    ${["float", "int"].includes(row.type)
      ? html`<label class="check" style=${{ paddingBottom: ".4rem" }}><input type="checkbox" checked=${row.log} onChange=${(event) => change({ log: event.target.checked })} /> log</label>`
      : html`<span></span>`}
    <button type="button" class="bare" aria-label=${`Remove ${named}`} onClick=${remove} style=${{ paddingBottom: ".4rem" }}>Remove</button>
    ${faults.any && html`<span class="fault" id=${`param-${row.key}-fault`}>${row.name.trim()}: ${faults.any}</span>`}
  </div>`;
}

export function SpaceEditor({ rows, onChange }) {
  const at = (key, changes) => onChange(rows.map((row) => (row.key === key ? { ...row, ...changes } : row)));
  const fault = useFault("space");
  return html`<div>
    ${rows.length === 0 && html`<p class="muted">Without parameters here, the objective's own space is taken, or it asks for them as it runs.</p>`}
    ${rows.map((row) => html`<${Param} key=${row.key} row=${row} change=${(changes) => at(row.key, changes)} remove=${() => onChange(rows.filter((other) => other.key !== row.key))} />`)}
    ${fault && html`<p class="small bad-text" role="alert">${fault}</p>`}
    <p style=${{ marginTop: ".6rem" }}><button type="button" onClick=${() => onChange([...rows, paramOf("", { type: "float" })])}>Add a parameter</button></p>
  </div>`;
}

function Setting({ row, change, remove }) {
  const fault = useFault(`settings.${row.name.trim()}`);
  const id = `setting-${row.key}`;
  return html`<div class="field">
    <label for=${id}>${row.name || "New setting"}</label>
    ${row.isNew && html`<input aria-label="Name of the setting" placeholder="name" value=${row.name} onInput=${(event) => change({ name: event.target.value })} />`}
    <input ...${described(id, fault, "")} value=${row.value} autocomplete="off" onInput=${(event) => change({ value: event.target.value })} />
    ${fault && html`<span class="fault" id="${id}-fault">${fault}</span>`}
    ${row.isNew && html`<button type="button" class="bare" onClick=${remove}>Remove ${row.name || "it"}</button>`}
  </div>`;
}

export function SettingsEditor({ rows, onChange }) {
  const at = (key, changes) => onChange(rows.map((row) => (row.key === key ? { ...row, ...changes } : row)));
  const fault = useFault("settings");
  return html`<div>
    <div class="fields">${rows.map(
      (row) => html`<${Setting} key=${row.key} row=${row} change=${(changes) => at(row.key, changes)} remove=${() => onChange(rows.filter((other) => other.key !== row.key))} />`,
    )}</div>
    ${fault && html`<p class="small bad-text" role="alert">${fault}</p>`}
    <p style=${{ marginTop: ".6rem" }}><button type="button" onClick=${() => onChange([...rows, { ...settingOf("", ""), value: "", isNew: true }])}>Add a setting</button></p>
  </div>`;
}
