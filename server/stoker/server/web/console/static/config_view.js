// The configuration of a version: where each value comes from, and the whole of it.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { address, getJson, modelPath } from "./server.js";

const ORIGINS = { written: "config.pbtxt", inferred: "the model's file", default: "default", warning: "warning" };
const COLUMNS = ["", "name", "type", "shape of a row", "labels"];

export function ConfigView({ model, version }) {
  const [config, setConfig] = useState(null);
  const [error, setError] = useState(null);
  const path = modelPath("v2", model.name, version);
  useEffect(() => {
    getJson(`${path}/config`).then(setConfig, setError);
  }, [path, model]);
  const page = modelPath("", model.name, version);
  return html`
    <p>
      <a href=${address(page)}>Page with calls</a>, <a href=${address(`${path}/openapi.json`)}>openapi.json</a>,
      ${" "}<a href=${address(`${path}/stats`)}>statistics</a>, <a href="../metrics">metrics</a>
    </p>
    <h2>Tensors</h2>
    <div class="wide">
      <table>
        <thead><tr>${COLUMNS.map((title) => html`<th key=${title} scope="col">${title}</th>`)}</tr></thead>
        <tbody>
          ${["inputs", "outputs"].flatMap((kind) => model[kind].map(({ name, datatype, dims, is_optional, labels }) => html`
            <tr key=${`${kind}.${name}`}>
              <td>${kind.slice(0, -1)}${is_optional ? ", optional" : ""}</td>
              <th scope="row"><code>${name}</code></th>
              <td>${datatype}</td>
              <td>[${dims.join(", ")}]</td>
              <td>${labels?.length || ""}</td>
            </tr>
          `))}
        </tbody>
      </table>
    </div>
    <h2>Origin of the values</h2>
    <div class="wide">
      <table>
        <thead><tr><th scope="col">field</th><th scope="col">value</th><th scope="col">origin</th></tr></thead>
        <tbody>
          ${model.findings.map(({ field, origin, text }, at) => html`
            <tr key=${at}>
              <th scope="row"><code>${field}</code></th>
              <td>${text}</td>
              <td class=${origin === "warning" ? "bad" : ""}>${ORIGINS[origin]}</td>
            </tr>
          `)}
        </tbody>
      </table>
    </div>
    <h2>Whole configuration</h2>
    ${error && html`<p class="error">${error.message}</p>`}
    ${config && html`<pre class="code" tabindex="0" aria-label="Configuration as JSON">${JSON.stringify(config, null, 2)}</pre>`}
  `;
}
