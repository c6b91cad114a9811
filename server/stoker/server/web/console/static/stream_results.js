// The responses of a decoupled model as they come: texts are joined, other outputs are listed.

import { html } from "./vendor/preact-htm.js";
import { milliseconds } from "./format.js";

const MOST_RESPONSES = 100;
const OWN_FIELDS = new Set(["model_name", "model_version", "id", "parameters"]);

export function StreamResults({ run }) {
  const names = [...new Set(run.responses.flatMap(Object.keys))].filter((name) => !OWN_FIELDS.has(name));
  const isText = (name) => run.responses.every((response) => response[name] === undefined || typeof response[name] === "string");
  return html`
    ${names.map((name) => html`
      <h3 key=${name}><code>${name}</code></h3>
      ${isText(name)
        ? html`<pre class="text">${run.responses.map((response) => response[name] ?? "").join("")}</pre>`
        : html`
            <ol class="responses">
              ${run.responses.slice(-MOST_RESPONSES).map((response, at) => html`<li key=${at}>${JSON.stringify(response[name])}</li>`)}
            </ol>
          `}
    `)}
    <p class="soft">
      ${run.responses.length} responses${run.first_ms === null ? "" : `, the first after ${milliseconds(run.first_ms)}`},
      ${" "}${milliseconds(run.total_ms)} in all
    </p>
  `;
}
