// One model: a form to try it, its load, and its configuration.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { ConfigView } from "./config_view.js";
import { Control } from "./control.js";
import { KeyForm } from "./key_form.js";
import { LoadView } from "./load_view.js";
import { getJson, modelPath } from "./server.js";
import { TryView } from "./try_view.js";

const TABS = { try: "Try it", load: "Load", config: "Configuration" };

export function ModelView({ live, name, version, tab }) {
  const [model, setModel] = useState(null);
  const [error, setError] = useState(null);
  const entries = live.listing.models.filter((entry) => entry.name === name);
  const states = entries.map(({ version, state }) => `${version} ${state}`).join(", ");

  // Again after each change of a state: a reload may bring other tensors.
  useEffect(() => {
    getJson(modelPath("ui/api", name, version)).then(
      (found) => (setModel(found), setError(null)),
      (failure) => (setModel(null), setError(failure)),
    );
  }, [states]);

  const link = (to, of = version) => `#/models/${encodeURIComponent(name)}/${of ?? "-"}/${to}`;
  const entry = entries.find((each) => String(each.version) === (version ?? String(model?.version)));
  return html`
    <p class="facts">
      ${entry && html`<span class=${`state ${entry.state}`}>${entry.state}</span>`}
      ${model && `version ${model.version}, ${model.platform || model.backend}, ${model.devices.join(", ") || "no device"}`}
      ${model && (model.max_batch_size ? `, up to ${model.max_batch_size} rows a request` : ", no batch dimension")}
      ${model?.is_decoupled && ", any number of responses to a request"}${model?.sequence && ", requests belong to sequences"}
    </p>
    ${entry?.reason && html`<p class="error">${entry.reason}</p>`}
    ${model?.ready_versions.length > 1 && html`
      <p>
        Versions:
        ${model.ready_versions.map((each) => {
          const current = each === model.version ? "true" : null;
          return html` <a key=${each} href=${link(tab, each)} aria-current=${current}>${each}</a>`;
        })}
      </p>
    `}
    ${live.listing.control_refused
      ? html`<details class="soft"><summary>Load and unload are not possible here</summary><p>${live.listing.control_refused}</p></details>`
      : html`<${Control} name=${name} isReady=${entry?.state === "READY"} />`}
    <nav class="tabs" aria-label="Model">
      ${Object.entries(TABS).map(
        ([key, title]) => html`<a key=${key} href=${link(key)} aria-current=${key === tab ? "page" : null}>${title}</a>`,
      )}
    </nav>
    ${error?.missingHeader && html`<${KeyForm} header=${error.missingHeader} message=${error.message} />`}
    ${error && !error.missingHeader && html`<p class="error" role="alert">${error.message}</p>`}
    ${model && tab === "try" && html`<${TryView} key=${model.version} model=${model} version=${version} />`}
    ${model && tab === "load" && html`<${LoadView} live=${live} model=${model} />`}
    ${model && tab === "config" && html`<${ConfigView} model=${model} version=${version} />`}
  `;
}
