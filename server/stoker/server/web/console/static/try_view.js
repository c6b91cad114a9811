// The form of a model: its inputs, the run, the results, and the same request as calls to paste.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { InputEditor } from "./editors.js";
import { milliseconds } from "./format.js";
import { generate, infer } from "./requests.js";
import { Results } from "./results.js";
import { Snippets } from "./snippets.js";
import { StreamResults } from "./stream_results.js";

export function TryView({ model, version }) {
  const [given, setGiven] = useState({}); // by input: a tensor, null (nothing yet) or an Error
  const [picture, setPicture] = useState(null);
  const [run, setRun] = useState({ state: "idle" });
  const aborting = useRef(null);
  useEffect(() => () => aborting.current?.abort(), []);

  const missing = model.inputs.filter(({ name, is_optional }) => !given[name] && !is_optional).map(({ name }) => name);
  const wrong = model.inputs.filter(({ name }) => given[name] instanceof Error).map(({ name }) => name);
  const tensors = missing.length || wrong.length ? null : model.inputs.map(({ name }) => given[name]).filter(Boolean);

  function onTensor(name, tensor) {
    setGiven((before) => ({ ...before, [name]: tensor }));
    setRun((before) => (before.state === "failed" ? { state: "idle" } : before));
  }

  async function onSubmit(event) {
    event.preventDefault();
    if (!tensors) {
      const text = wrong.length ? `Mend the input ${wrong.join(", ")} first.` : `Give the input ${missing.join(", ")} first.`;
      setRun({ state: "failed", text });
      document.getElementById(`input-${[...wrong, ...missing][0]}`)?.focus();
      return;
    }
    aborting.current?.abort();
    const { signal } = (aborting.current = new AbortController());
    setRun({ state: "running" });
    try {
      if (model.is_decoupled) await runStream(signal);
      else setRun({ state: "done", picture, ...(await infer(model, version, tensors, signal)) });
    } catch (error) {
      if (!signal.aborted) setRun({ state: "failed", text: error.message });
    }
  }

  async function runStream(signal) {
    const begin = performance.now();
    const responses = [];
    let first_ms = null;
    const show = (state) => setRun({ state, responses: [...responses], first_ms, total_ms: performance.now() - begin });
    show("running");
    for await (const response of generate(model, version, tensors, signal)) {
      if (response.error) throw new Error(response.error);
      first_ms ??= performance.now() - begin;
      responses.push(response);
      show("running");
    }
    show("done");
  }

  function stop() {
    aborting.current.abort();
    setRun((before) => ({ ...before, state: before.responses ? "done" : "idle" }));
  }

  const isRunning = run.state === "running";
  return html`
    <div class="columns">
      <form class="panel" aria-label=${`Inputs of ${model.name}`} onsubmit=${onSubmit} novalidate>
        <h2>Inputs</h2>
        ${model.inputs.map(
          (input) => html`<${InputEditor} key=${input.name} model=${model} input=${input} onTensor=${onTensor} onPicture=${setPicture} />`,
        )}
        <p>
          <button class="primary">Run ${model.name}</button>
          ${isRunning && html` <button type="button" onclick=${stop}>Stop</button>`}
        </p>
      </form>
      <section class="panel" aria-labelledby="results">
        <h2 id="results">Results</h2>
        <div aria-live="polite" aria-busy=${isRunning}>
          ${run.state === "idle" && html`<p class="soft">Run the model to see its outputs here.</p>`}
          ${isRunning && !run.responses && html`<p>Running.</p>`}
          ${run.outputs && html`<${Results} model=${model} outputs=${run.outputs} picture=${run.picture} />`}
          ${run.responses && html`<${StreamResults} run=${run} />`}
        </div>
        ${run.state === "failed" && html`<p class="error" role="alert">${run.text}</p>`}
        ${run.outputs && html`<${Latency} total_ms=${run.total_ms} split=${run.split} />`}
      </section>
    </div>
    <${Snippets} model=${model} version=${version} tensors=${tensors} />
  `;
}

/** Where the time went: the server's queue and computation, and the rest. */
function Latency({ total_ms, split }) {
  if (!split) return html`<p class="soft">${milliseconds(total_ms)} in the browser.</p>`;
  const rest = Math.max(0, total_ms - split.queue - split.compute);
  const parts = [
    ["queue", split.queue],
    ["compute", split.compute],
    ["network, decoding, browser", rest],
  ];
  const sum = parts.reduce((total, [, value]) => total + value, 0) || 1;
  return html`
    <h3>Time: ${milliseconds(total_ms)}</h3>
    <svg class="split" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      ${parts.map(([name, value], at) => {
        const left = parts.slice(0, at).reduce((total, [, each]) => total + each, 0);
        return html`<rect key=${name} class=${`series${at}`} x=${(left / sum) * 100} width=${(value / sum) * 100} height="6" />`;
      })}
    </svg>
    <p class="legend">
      ${parts.map(([name, value], at) => html`<span key=${name} class=${`series${at}`}>${name} <b>${milliseconds(value)}</b></span>`)}
    </p>
    ${split.count > 1 && html`<p class="soft">Queue and compute are means of ${split.count} requests that completed meanwhile.</p>`}
  `;
}
