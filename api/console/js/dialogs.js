// Confirmations: a native dialog with what will happen, the fields it needs, and what went wrong.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Fault } from "./parts.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {string} text what will happen
 * @property {string} verb the button's word
 * @property {boolean=} isDanger
 * @property {{name: string, label: string, type?: string, value?: any, hint?: string}[]=} fields
 * @property {(answers: object) => Promise<string>} act does it, and answers the sentence to show
 */

/** @param {{question: Question, onClose: (done?: string) => void}} props */
export function Dialog({ question, onClose }) {
  const element = useRef();
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    element.current.showModal();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      onClose(await question.act(answersOf(event.target, question.fields ?? [])));
    } catch (refused) {
      setError(refused);
      setBusy(false);
    }
  };
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${() => onClose()}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${question.title}</h2>
      <p>${question.text}</p>
      ${(question.fields ?? []).map((field) => html`<${Answer} key=${field.name} field=${field} />`)}
      <${Fault} error=${error} />
      <div class="actions">
        <button type="button" onClick=${() => element.current.close()}>Leave it</button>
        <button class="main ${question.isDanger ? "danger" : ""}" disabled=${isBusy}>${question.verb}</button>
      </div>
    </form>
  </dialog>`;
}

function Answer({ field }) {
  const id = `answer-${field.name}`;
  if (field.type === "checkbox") {
    return html`<label class="check"><input type="checkbox" id=${id} name=${field.name} /> ${field.label}</label>`;
  }
  return html`<div class="field">
    <label for=${id}>${field.label}</label>
    <input id=${id} name=${field.name} type=${field.type ?? "text"} value=${field.value} min=${field.min} required=${field.isRequired} />
    ${field.hint && html`<span class="hint">${field.hint}</span>`}
  </div>`;
}

function answersOf(form, fields) {
  return Object.fromEntries(
    fields.map(({ name, type }) => {
      const input = form.elements[name];
      if (type === "checkbox") return [name, input.checked];
      return [name, type === "number" ? (input.value === "" ? null : Number(input.value)) : input.value];
    }),
  );
}
