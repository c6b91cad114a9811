// Load, reload and unload of a model.

import { html, useState } from "./vendor/preact-htm.js";
import { postJson } from "./server.js";

/** The buttons for a model, with the outcome of the last one. */
export function Control({ name, isReady }) {
  const [running, setRunning] = useState(null);
  const [outcome, setOutcome] = useState(null);

  async function run(verb, path) {
    setRunning(verb);
    setOutcome(null);
    try {
      await postJson(`v2/repository/models/${encodeURIComponent(name)}/${path}`, {});
      setOutcome({ text: `${name}: ${verb} done.` });
    } catch (error) {
      setOutcome({ text: error.message, isError: true });
    }
    setRunning(null);
  }

  const button = (verb, path) => html`
    <button type="button" class="small" disabled=${running !== null} aria-label=${`${verb} ${name}`} onclick=${() => run(verb, path)}>
      ${running === verb ? `${verb} ...` : verb}
    </button>
  `;
  return html`
    <div class="control">
      ${isReady ? [button("reload", "load"), button("unload", "unload")] : button("load", "load")}
      <span role="status" class=${outcome?.isError ? "error" : "soft"}>${outcome?.text}</span>
    </div>
  `;
}
