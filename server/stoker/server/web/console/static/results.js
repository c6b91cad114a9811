// The outputs of a response: highest values with labels as bars, boxes on the picture, texts, and tables of numbers.

import { html, useState } from "./vendor/preact-htm.js";
import { Boxes, detectionsOf } from "./boxes.js";
import { Bar } from "./chart.js";
import { number } from "./format.js";
import { writeNpy } from "./npy.js";
import { SaveLink } from "./save_link.js";
import { countOf, isBytes, textOf } from "./tensors.js";

const MOST_ROWS = 16;
const TOP = 5;
const MOST_TOP = 50;
const MOST_ELEMENTS = 256;

export function Results({ model, outputs, picture }) {
  const labelsOf = (name) => model.outputs.find((output) => output.name === name)?.labels ?? [];
  const detections = picture && detectionsOf(outputs, model.outputs);
  return html`
    ${detections && html`<${Boxes} picture=${picture} ...${detections} />`}
    ${outputs.map((output) => {
      const labels = labelsOf(output.name);
      return html`<${Output} key=${output.name} output=${output} labels=${labels} isBatched=${model.max_batch_size > 0} />`;
    })}
  `;
}

function Output({ output, labels, isBatched }) {
  const { name, datatype, shape, data } = output;
  const dims = isBatched ? shape.slice(1) : shape;
  const rows = isBatched ? shape[0] : 1;
  const isVector = !isBytes(datatype) && dims.filter((size) => size !== 1).length === 1 && countOf(dims) > 1;
  const content = isBytes(datatype)
    ? html`<${Texts} data=${data} />`
    : isVector
      ? html`<${Bars} data=${data} rows=${rows} labels=${labels} />`
      : html`<${Numbers} data=${data} />`;
  return html`
    <div class="output">
      <h3><code>${name}</code> <span class="soft">${datatype}, ${shape.join(" x ") || "scalar"}</span></h3>
      ${content}
      ${!isBytes(datatype) && html`<${SaveLink} name=${`${name.replace(/[^\w-]+/g, "_")}.npy`} make=${() => writeNpy(output)} />`}
    </div>
  `;
}

function Bars({ data, rows, labels }) {
  const [top, setTop] = useState(TOP);
  const size = data.length / rows;
  return html`
    ${Array.from({ length: Math.min(rows, MOST_ROWS) }, (_, row) => {
      const values = Array.from(data.slice(row * size, (row + 1) * size), Number);
      return html`<${BarRow} key=${row} caption=${rows > 1 ? `row ${row + 1}` : ""} values=${values} labels=${labels} top=${top} />`;
    })}
    ${rows > MOST_ROWS && html`<p class="soft">${rows - MOST_ROWS} further rows are in the file.</p>`}
    ${top < Math.min(size, MOST_TOP) && html`
      <button type="button" class="small" onclick=${() => setTop(MOST_TOP)}>Show ${Math.min(size, MOST_TOP)} values</button>
    `}
  `;
}

function BarRow({ caption, values, labels, top }) {
  const highest = values.map((value, at) => ({ value, at })).sort((a, b) => b.value - a.value).slice(0, top);
  const low = Math.min(0, ...highest.map(({ value }) => value));
  const isShare = values.every((value) => value >= 0 && value <= 1);
  const high = isShare ? 1 : Math.max(...highest.map(({ value }) => value), low + Number.EPSILON);
  return html`
    <table class="bars">
      <caption class=${caption ? "" : "unseen"}>${caption || "Highest values"}</caption>
      <tbody>
        ${highest.map(({ value, at }) => html`
          <tr key=${at}>
            <th scope="row">${labels[at] ?? at}</th>
            <td><${Bar} share=${(value - low) / (high - low)} /></td>
            <td class="figure">${number(value)}</td>
          </tr>
        `)}
      </tbody>
    </table>
  `;
}

function Texts({ data }) {
  return html`
    ${data.slice(0, MOST_ROWS).map((element, at) => {
      const text = textOf(element) ?? `${element.length} bytes that are no text`;
      return html`<pre key=${at} class="text">${text}</pre>`;
    })}
    ${data.length > MOST_ROWS && html`<p class="soft">${data.length - MOST_ROWS} further elements.</p>`}
  `;
}

function Numbers({ data }) {
  if (data.length === 1) return html`<p class="scalar">${number(Number(data[0]))}</p>`;
  let [low, high, sum] = [Infinity, -Infinity, 0];
  for (const element of data) {
    const value = Number(element);
    if (value < low) low = value;
    if (value > high) high = value;
    sum += value;
  }
  const shown = Array.from(data.slice(0, MOST_ELEMENTS), (value) => number(Number(value))).join(", ");
  return html`
    <p class="soft">from ${number(low)} to ${number(high)}, mean ${number(sum / data.length)}</p>
    <pre class="text">${shown}${data.length > MOST_ELEMENTS ? ` ... ${data.length - MOST_ELEMENTS} further` : ""}</pre>
  `;
}
