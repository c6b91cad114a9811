// The editor of one input: numbers, text, a picture or a file. It calls `onTensor` with a tensor, or an Error that says what is wrong.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { FilePicker } from "./file_picker.js";
import { bytes } from "./format.js";
import { converted, readNpy } from "./npy.js";
import { LAYOUTS, NORMALISATIONS, layoutsOf, pictureTensor } from "./pictures.js";
import { useStored } from "./settings.js";
import { countOf, isBytes, isFloat, parseElement, parseNumbers, shapeFor } from "./tensors.js";

const KINDS = { numbers: "Numbers", picture: "Picture", csv: "CSV file", npy: ".npy file", text: "Text", bytes: "File as bytes" };
/** Zeros in a new form, at most. */
const MOST_ZEROS = 64;

const kindsFor = ({ datatype, dims }) => {
  if (isBytes(datatype)) return ["text", "bytes"];
  return [...(layoutsOf(dims).length ? ["picture"] : []), "numbers", "csv", "npy"];
};

/** The editor of `input`, with the choice of its kind. `model`: { name, max_batch_size }. */
export function InputEditor({ model, input, onTensor, onPicture }) {
  const kinds = kindsFor(input);
  const [settings, change] = useStored(`${model.name}.${input.name}`, { kind: kinds[0] });
  const kind = kinds.includes(settings.kind) ? settings.kind : kinds[0];
  const [problem, setProblem] = useState(null);
  const isBatched = model.max_batch_size > 0;
  const id = `input-${input.name}`;
  const shape = [...(isBatched ? ["rows"] : []), ...input.dims.map((size) => (size < 0 ? "any" : size))].join(" x ");

  // `make` returns a tensor, or null while there is no data.
  const take = (make) => {
    try {
      const tensor = make();
      setProblem(null);
      onTensor(input.name, tensor);
    } catch (error) {
      setProblem(error.message);
      onTensor(input.name, error);
    }
  };
  const props = { id, input, isBatched, take, settings, change, problemId: `${id}-problem`, onPicture };
  const Editor = { numbers: Numbers, picture: Picture, csv: Csv, npy: Npy, text: Text, bytes: RawFile }[kind];
  return html`
    <fieldset class="input">
      <legend>
        <code>${input.name}</code> <span class="soft">${input.datatype}, ${shape}${input.is_optional ? ", optional" : ""}</span>
      </legend>
      <label class="kind"
        ><span>Give it as</span>
        <select value=${kind} onchange=${(event) => change({ kind: event.target.value })}>
          ${kinds.map((each) => html`<option key=${each} value=${each}>${KINDS[each]}</option>`)}
        </select>
      </label>
      <${Editor} key=${kind} ...${props} />
      <p id=${props.problemId} class="error" role="alert">${problem && `${input.name}: ${problem}`}</p>
    </fieldset>
  `;
}

function Numbers({ id, input, isBatched, take, problemId }) {
  const sizes = input.dims.map((size) => (size < 0 ? 1 : size));
  const zeros = !input.is_optional && countOf(sizes) <= MOST_ZEROS;
  const [text, setText] = useState(zeros ? new Array(countOf(sizes)).fill(0).join(", ") : "");
  useEffect(
    () =>
      take(() => {
        if (!text.trim()) return null;
        const data = parseNumbers(text, input.datatype);
        return { name: input.name, datatype: input.datatype, shape: shapeFor(data.length, input.dims, isBatched), data };
      }),
    [text],
  );
  return html`
    <label for=${id}>Numbers, separated by commas or blanks</label>
    <textarea id=${id} rows="4" spellcheck="false" aria-describedby=${problemId} value=${text}
      oninput=${(event) => setText(event.target.value)} />
  `;
}

function Text({ id, input, isBatched, take, problemId }) {
  const [text, setText] = useState("");
  const isList = countOf(input.dims.map((size) => (size < 0 ? 1 : size))) !== 1;
  useEffect(
    () =>
      take(() => {
        if (!text && input.is_optional) return null;
        const parts = isList ? text.split("\n") : [text];
        const data = parts.map((part) => new TextEncoder().encode(part));
        return { name: input.name, datatype: "BYTES", shape: shapeFor(data.length, input.dims, isBatched), data };
      }),
    [text],
  );
  return html`
    <label for=${id}>${isList ? "Text: each line is an element" : "Text"}</label>
    <textarea id=${id} rows="4" aria-describedby=${problemId} value=${text} oninput=${(event) => setText(event.target.value)} />
  `;
}

function RawFile({ id, input, isBatched, take }) {
  const onFile = async (file) => {
    const data = [new Uint8Array(await file.arrayBuffer())];
    take(() => ({ name: input.name, datatype: "BYTES", shape: shapeFor(1, input.dims, isBatched), data }));
    return `${file.name}, ${bytes(file.size)}`;
  };
  useEffect(() => take(() => null), []);
  return html`<${FilePicker} id=${id} label="Audio or any other file: its bytes are the element" onFile=${onFile} />`;
}

function Npy({ id, input, isBatched, take }) {
  const onFile = async (file) => {
    const buffer = await file.arrayBuffer();
    let note = "";
    take(() => {
      const array = readNpy(buffer);
      note = `${file.name}: ${array.datatype}, ${array.shape.join(" x ")}`;
      const isWhole = array.shape.length === input.dims.length + (isBatched ? 1 : 0);
      const shape = isWhole ? array.shape : shapeFor(array.data.length, input.dims, isBatched);
      return { name: input.name, datatype: input.datatype, shape, data: converted(array.data, input.datatype) };
    });
    return note;
  };
  useEffect(() => take(() => null), []);
  return html`<${FilePicker} id=${id} label="A .npy file" accept=".npy" onFile=${onFile} />`;
}

function Csv({ id, input, isBatched, take }) {
  const onFile = async (file) => {
    const text = await file.text();
    let note = "";
    take(() => {
      const rows = text.trim().split(/\r?\n/).map((line) => line.split(/[,;\t]/).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
      // A first row without numbers has the names of the columns.
      if (rows[0].every((cell) => Number.isNaN(Number(cell)))) rows.shift();
      const cells = rows.flat();
      const data = parseNumbers("", input.datatype).constructor.from(cells, (cell, at) => parseElement(cell, input.datatype, at));
      note = `${file.name}: ${rows.length} rows of ${rows[0]?.length ?? 0}`;
      return { name: input.name, datatype: input.datatype, shape: shapeFor(data.length, input.dims, isBatched), data };
    });
    return note;
  };
  useEffect(() => take(() => null), []);
  return html`<${FilePicker} id=${id} label="A CSV file of numbers: each line is a row" accept=".csv,text/csv" onFile=${onFile} />`;
}

function Picture({ id, input, isBatched, take, settings, change, onPicture }) {
  const layouts = layoutsOf(input.dims);
  const [bitmap, setBitmap] = useState(null);
  const preview = useRef(null);
  const chosen = {
    normalisation: isFloat(input.datatype) ? "unit" : "bytes", maximum: 16, isInverted: false, isSwapped: false, ...settings,
    layout: layouts.includes(settings.layout) ? settings.layout : layouts[0],
  };
  const onFile = async (file) => {
    const decoded = await createImageBitmap(file);
    setBitmap(decoded);
    return `${file.name}: ${decoded.width} x ${decoded.height} pixels`;
  };
  useEffect(() => {
    let canvas = null;
    take(() => {
      if (!bitmap) return null;
      const made = pictureTensor(bitmap, input, chosen, isBatched);
      canvas = made.canvas;
      return made.tensor;
    });
    preview.current.replaceChildren(...(canvas ? [canvas] : []));
    if (canvas) {
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `The picture as the model gets it: ${canvas.width} x ${canvas.height} pixels`);
      onPicture(canvas);
    }
  }, [bitmap, JSON.stringify(chosen)]);
  const select = (name, label, options) => html`
    <label><span>${label}</span>
      <select value=${chosen[name]} onchange=${(event) => change({ [name]: event.target.value })}>
        ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
  `;
  const box = (name, label) => html`
    <label class="check">
      <input type="checkbox" checked=${chosen[name]} onchange=${(event) => change({ [name]: event.target.checked })} /> ${label}
    </label>
  `;
  return html`
    <${FilePicker} id=${id} label="A picture" accept="image/*" onFile=${onFile}
      preview=${html`<div class="preview" ref=${preview}></div>`} />
    <div class="options">
      ${select("layout", "Layout", layouts.map((layout) => [layout, LAYOUTS[layout]]))}
      ${select("normalisation", "Values", Object.entries(NORMALISATIONS))}
      ${chosen.normalisation === "range" && html`
        <label><span>Maximum</span>
          <input type="number" step="any" value=${chosen.maximum} onchange=${(event) => change({ maximum: Number(event.target.value) })} />
        </label>
      `}
      ${box("isInverted", "Invert")}
      ${chosen.layout !== "HW" && box("isSwapped", "BGR instead of RGB")}
    </div>
  `;
}
