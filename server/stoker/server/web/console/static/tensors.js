// Tensors: { name, datatype, shape, data }. `data` is a typed array of the elements, FP16 and BF16 as Float32Array, INT64 and UINT64 as
// BigInt arrays; for BYTES it is an array of Uint8Array.

const ARRAYS = {
  BOOL: Uint8Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array,
  FP16: Float32Array, BF16: Float32Array, FP32: Float32Array, FP64: Float64Array,
};
const BITS = { INT8: 8, INT16: 16, INT32: 32, INT64: 64, UINT8: 8, UINT16: 16, UINT32: 32, UINT64: 64 };

export const countOf = (shape) => shape.reduce((product, size) => product * size, 1);
export const isBytes = (datatype) => datatype === "BYTES";
export const isFloat = (datatype) => datatype.startsWith("FP") || datatype === "BF16";
export const newData = (datatype, length) => (isBytes(datatype) ? new Array(length) : new ARRAYS[datatype](length));

/** The elements of `tensor` as JSON holds them. Integers of 64 bits must be safe numbers there; texts must be UTF-8. */
export function jsonElements({ datatype, data }) {
  if (isBytes(datatype)) return data.map((element) => textOf(element));
  if (datatype === "BOOL") return Array.from(data, Boolean);
  return Array.from(data, Number);
}

/** The text of one BYTES element; null: it is not UTF-8. */
export function textOf(element) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(element);
  } catch {
    return null;
  }
}

/** A number of the datatype; throws an Error that names the text, its position and what was expected. */
export function parseElement(text, datatype, position) {
  const fail = (expected) => {
    throw new Error(`element ${position + 1} is "${text}": expected ${expected}`);
  };
  if (datatype === "BOOL") {
    if (!/^(true|false|0|1)$/i.test(text)) fail("true, false, 0 or 1");
    return /^(true|1)$/i.test(text) ? 1 : 0;
  }
  if (isFloat(datatype)) {
    const value = Number(text.replace(/^([+-]?)inf(inity)?$/i, "$1Infinity"));
    if (Number.isNaN(value) && !/^nan$/i.test(text)) fail("a number");
    return value;
  }
  if (!/^[+-]?\d+$/.test(text)) fail("a whole number");
  const value = BigInt(text.replace("+", ""));
  const bits = BigInt(BITS[datatype]);
  const [low, high] = datatype.startsWith("U") ? [0n, (1n << bits) - 1n] : [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n];
  if (value < low || value > high) fail(`${low} to ${high} for ${datatype}`);
  return bits === 64n ? value : Number(value);
}

/** The data of a list of numbers in text: commas, blanks and brackets separate. */
export function parseNumbers(text, datatype) {
  const words = text.split(/[\s,;[\]()]+/).filter(Boolean);
  const data = newData(datatype, words.length);
  words.forEach((word, at) => (data[at] = parseElement(word, datatype, at)));
  return data;
}

/**
 * The shape of `count` elements for an input with `dims`; the number of rows is in front if the model is batched. One open size follows
 * from the count; the others are 1. Throws an Error if the count does not fit.
 */
export function shapeFor(count, dims, isBatched) {
  const fixed = dims.filter((size) => size >= 0).reduce((product, size) => product * size, 1);
  const open = dims.indexOf(-1);
  const shape = dims.map((size) => (size < 0 ? 1 : size));
  const sizes = dims.map((size) => (size < 0 ? "any" : size)).join(" x ") || "one element";
  const wanted = `${sizes}${isBatched ? ", in any number of rows" : ""}`;
  if (count === 0 || count % fixed) throw new Error(`${count} elements do not fit ${wanted}: expected a multiple of ${fixed}`);
  const rest = count / fixed;
  if (open >= 0) shape[open] = rest;
  else if (!isBatched && rest !== 1) throw new Error(`${count} elements do not fit ${wanted}: expected ${fixed}`);
  return isBatched ? [open >= 0 ? 1 : rest, ...shape] : shape;
}

const scratch = new DataView(new ArrayBuffer(4));

/** The bits of a half-precision float, rounded to the nearest even. */
export function halfBits(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  let mantissa = bits & 0x7fffff;
  if (exponent === 143) return sign | 0x7c00 | (mantissa ? 0x200 : 0);
  if (exponent >= 31) return sign | 0x7c00;
  if (exponent < -10) return sign;
  let shift = 13;
  let base = exponent << 10;
  if (exponent <= 0) {
    mantissa |= 0x800000;
    shift = 14 - exponent;
    base = 0;
  }
  const half = base + (mantissa >>> shift);
  const rest = mantissa & ((1 << shift) - 1);
  const middle = 1 << (shift - 1);
  return sign | (half + (rest > middle || (rest === middle && half & 1) ? 1 : 0));
}

export function halfValue(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 31;
  const mantissa = bits & 0x3ff;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}

/** The bits of a bfloat16: the upper half of a float32, rounded to the nearest even. */
export function brainBits(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  if (Number.isNaN(value)) return (bits >>> 16) | 0x40;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

export function brainValue(bits) {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
}

/** The elements as KServe's binary form: little-endian, a BYTES element with its length in front. */
export function binaryOf({ datatype, data }) {
  if (isBytes(datatype)) {
    const bytes = new Uint8Array(data.reduce((sum, element) => sum + 4 + element.length, 0));
    let at = 0;
    for (const element of data) {
      new DataView(bytes.buffer).setUint32(at, element.length, true);
      bytes.set(element, at + 4);
      at += 4 + element.length;
    }
    return bytes;
  }
  const stored = datatype === "FP16" ? Uint16Array.from(data, halfBits) : datatype === "BF16" ? Uint16Array.from(data, brainBits) : data;
  return new Uint8Array(stored.buffer, stored.byteOffset, stored.byteLength);
}

/** The elements in KServe's binary form `bytes`. */
export function dataOf(datatype, bytes) {
  const own = bytes.slice().buffer;
  if (!isBytes(datatype)) {
    if (datatype === "FP16") return Float32Array.from(new Uint16Array(own), halfValue);
    if (datatype === "BF16") return Float32Array.from(new Uint16Array(own), brainValue);
    return new ARRAYS[datatype](own);
  }
  const elements = [];
  const view = new DataView(own);
  for (let at = 0; at < own.byteLength; ) {
    const length = view.getUint32(at, true);
    elements.push(new Uint8Array(own, at + 4, length));
    at += 4 + length;
  }
  return elements;
}
