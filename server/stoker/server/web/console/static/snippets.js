// The request in the form as calls to paste: curl, grpcurl, stoker_client and tritonclient.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { SaveLink } from "./save_link.js";
import { fileFor, fileRequest } from "./requests.js";
import { modelPath, postJson } from "./server.js";
import { useStored } from "./settings.js";
import { isBytes, jsonElements, textOf } from "./tensors.js";

/** The most elements, and characters of text, that stand in a call itself. */
const MOST_ELEMENTS = 32;
const MOST_CHARACTERS = 2000;
const DELAY_MS = 300;

export function Snippets({ model, version, tensors }) {
  const [calls, setCalls] = useState(null);
  const [error, setError] = useState(null);
  const [chosen, choose] = useStored("snippets", { key: "curl-json" });
  useEffect(() => {
    if (!tensors) {
      setCalls(null);
      return undefined;
    }
    const timer = setTimeout(() => {
      postJson(`${modelPath("ui/api", model.name, version)}/calls`, bodyOf(model, tensors)).then(
        (found) => (setCalls(found), setError(null)),
        (failure) => (setCalls(null), setError(failure)),
      );
    }, DELAY_MS);
    return () => clearTimeout(timer);
  }, [tensors && tensors.map(({ data }) => data)].flat());

  const call = calls?.find(({ key }) => key === chosen.key) ?? calls?.[0];
  return html`
    <section class="panel" aria-labelledby="calls">
      <h2 id="calls">The same request as a call</h2>
      ${!tensors && html`<p class="soft">Give all inputs to see the request as calls to paste.</p>`}
      ${error && html`<p class="error">${error.message}</p>`}
      ${call && html`
        <label class="kind"><span>Client</span>
          <select value=${call.key} onchange=${(event) => choose({ key: event.target.value })}>
            ${calls.map(({ key, title }) => html`<option key=${key} value=${key}>${title}</option>`)}
          </select>
        </label>
        ${call.note && html`<p class="soft">${call.note}</p>`}
        <pre class="code" tabindex="0" aria-label=${call.title}>${call.text}</pre>
        <p class="actions">
          <${CopyButton} key=${call.key} text=${call.text} />
          ${call.files.map(
            (file) => html`<${SaveLink} key=${file.name} name=${file.name} make=${() => fileFor(file, model, tensors)} />`,
          )}
        </p>
        ${call.files.length > 0 && html`
          <p class="soft">The call reads your data from ${call.files.map(({ name }) => name).join(", ")}: save it first.</p>
        `}
      `}
    </section>
  `;
}

/** Short data are in the call, long ones in files. */
function bodyOf(model, tensors) {
  const isRaw = ({ datatype, data }) => isBytes(datatype) && data.some((element) => textOf(element) === null);
  const isLong = (tensor) => {
    if (tensor.data.length > MOST_ELEMENTS || isRaw(tensor)) return true;
    return isBytes(tensor.datatype)
      ? tensor.data.reduce((sum, element) => sum + element.length, 0) > MOST_CHARACTERS
      : jsonElements(tensor).some((value) => !Number.isFinite(Number(value)));
  };
  return {
    inputs: tensors.map((tensor) => ({
      name: tensor.name,
      shape: tensor.shape,
      data: isLong(tensor) ? null : jsonElements(tensor),
      is_raw: isRaw(tensor),
    })),
    head_bytes: fileRequest(model, tensors).headBytes,
  };
}

function CopyButton({ text }) {
  const [note, setNote] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setNote("Copied.");
    } catch {
      setNote("The browser does not allow it: select the text instead.");
    }
  };
  return html`<button type="button" class="small" onclick=${copy}>Copy</button> <span role="status" class="soft">${note}</span>`;
}
