// Inference requests and their responses, and the same request in the form of each protocol.

import { writeNpy } from "./npy.js";
import { eventsOf, getJson, modelPath, request } from "./server.js";
import { binaryOf, countOf, dataOf, isBytes, jsonElements, textOf } from "./tensors.js";

const CONTENTS = {
  BOOL: "bool_contents", INT8: "int_contents", INT16: "int_contents", INT32: "int_contents", INT64: "int64_contents",
  UINT8: "uint_contents", UINT16: "uint_contents", UINT32: "uint_contents", UINT64: "uint64_contents",
  FP32: "fp32_contents", FP64: "fp64_contents", BYTES: "bytes_contents",
};
const HEAD_LENGTH = "Inference-Header-Content-Length";
const SEQUENCE = { sequence_id: 1, sequence_start: true, sequence_end: true };
const GRPC_SEQUENCE = { sequence_id: { int64_param: 1 }, sequence_start: { bool_param: true }, sequence_end: { bool_param: true } };

const factsOf = ({ name, datatype, shape }) => ({ name, datatype, shape });

/** KServe's binary request: { body, headBytes }. */
export function binaryRequest(model, tensors, parameters = { binary_data_output: true }) {
  const bodies = tensors.map(binaryOf);
  const inputs = tensors.map((tensor, at) => ({ ...factsOf(tensor), parameters: { binary_data_size: bodies[at].length } }));
  const head = new TextEncoder().encode(JSON.stringify({ parameters: { ...parameters, ...(model.sequence ? SEQUENCE : {}) }, inputs }));
  return { body: new Blob([head, ...bodies]), headBytes: head.length };
}

/** Runs the request; returns { outputs, total_ms, split } where split are the server's times for it. */
export async function infer(model, version, tensors, signal) {
  const path = modelPath("v2", model.name, version);
  const statisticsPath = `${modelPath("v2", model.name, model.version)}/stats`;
  const { body, headBytes } = binaryRequest(model, tensors);
  const before = await statistics(statisticsPath);
  const begin = performance.now();
  const headers = { [HEAD_LENGTH]: String(headBytes) };
  const response = await request(`${path}/infer`, { method: "POST", body, signal, headers });
  const buffer = await response.arrayBuffer();
  const total_ms = performance.now() - begin;
  const split = splitOf(before, await statistics(statisticsPath));
  return { outputs: outputsOf(new Uint8Array(buffer), response.headers.get(HEAD_LENGTH)), total_ms, split };
}

/** Null where statistics may not be read. */
async function statistics(path) {
  try {
    return (await getJson(path)).model_stats[0].inference_stats;
  } catch {
    return null;
  }
}

/** The mean times of the requests that completed between two statistics, in milliseconds; null: there were none. */
function splitOf(before, after) {
  if (!before || !after) return null;
  const difference = (name, field) => Number(after[name]?.[field] ?? 0) - Number(before[name]?.[field] ?? 0);
  const count = difference("success", "count");
  if (count <= 0) return null;
  const ms = (name) => difference(name, "ns") / count / 1e6;
  return { count, queue: ms("queue"), compute: ms("compute_input") + ms("compute_infer") + ms("compute_output"), request: ms("success") };
}

function outputsOf(bytes, headLength) {
  const length = headLength === null ? bytes.length : Number(headLength);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, length)));
  let at = length;
  return head.outputs.map(({ name, datatype, shape, parameters, data }) => {
    const size = parameters?.binary_data_size;
    if (size === undefined) {
      return { name, datatype, shape, data: isBytes(datatype) ? data.map((text) => new TextEncoder().encode(text)) : data };
    }
    at += size;
    return { name, datatype, shape, data: dataOf(datatype, bytes.subarray(at - size, at)) };
  });
}

/** The responses of a decoupled model as they come, each as generate_stream sends it. */
export async function* generate(model, version, tensors, signal) {
  const body = JSON.stringify(generateBody(model, tensors));
  const response = await request(`${modelPath("v2", model.name, version)}/generate_stream`, { method: "POST", body, signal });
  for await (const { data } of eventsOf(response)) yield data;
}

function generateBody(model, tensors) {
  const fields = tensors.map((tensor) => [tensor.name, countOf(tensor.shape) === 1 ? jsonElements(tensor)[0] : jsonElements(tensor)]);
  return { ...Object.fromEntries(fields), ...(model.sequence ? { parameters: SEQUENCE } : {}) };
}

function nested(elements, shape) {
  if (shape.length <= 1) return shape.length ? elements : elements[0];
  const size = countOf(shape.slice(1));
  return Array.from({ length: shape[0] }, (_, at) => nested(elements.slice(at * size, (at + 1) * size), shape.slice(1)));
}

const base64 = (element) => btoa(Array.from(element, (byte) => String.fromCharCode(byte)).join(""));
const tfsElements = (tensor) =>
  isBytes(tensor.datatype) ? tensor.data.map((element) => textOf(element) ?? { b64: base64(element) }) : jsonElements(tensor);

/** The request in the file request.bin: its response is JSON if JSON can hold it. */
export function fileRequest(model, tensors) {
  const isBinary = model.outputs.some(({ datatype }) => datatype === "FP16" || datatype === "BF16");
  return binaryRequest(model, tensors, isBinary ? { binary_data_output: true } : {});
}

/** The file that a call reads, as the server describes it ({ form, input }). */
export function fileFor({ form, input }, model, tensors) {
  const tensor = tensors.find(({ name }) => name === input);
  if (form === "npy") return writeNpy(tensor);
  if (form === "raw") return new Blob([tensor.data[0]]);
  if (form === "kserve-binary") return fileRequest(model, tensors).body;
  return new Blob([JSON.stringify(jsonFor(form, model, tensors, tensor))]);
}

function jsonFor(form, model, tensors, tensor) {
  const sequence = model.sequence ? { parameters: SEQUENCE } : {};
  if (form === "json") return jsonElements(tensor);
  if (form === "generate") return generateBody(model, tensors);
  if (form === "tfs") return { inputs: Object.fromEntries(tensors.map((each) => [each.name, nested(tfsElements(each), each.shape)])) };
  if (form === "kserve") return { ...sequence, inputs: tensors.map((each) => ({ ...factsOf(each), data: jsonElements(each) })) };
  const inputs = tensors.map((each) => ({
    ...factsOf(each),
    contents: { [CONTENTS[each.datatype]]: isBytes(each.datatype) ? each.data.map(base64) : jsonElements(each) },
  }));
  return { model_name: model.name, inputs, ...(model.sequence ? { parameters: GRPC_SEQUENCE } : {}) };
}
