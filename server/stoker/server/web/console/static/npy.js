// NumPy's file format, versions 1 to 3, without pickled objects: little-endian numbers in C order.

import { binaryOf, brainBits, dataOf, newData } from "./tensors.js";

const DATATYPES = {
  "|b1": "BOOL", "|i1": "INT8", "<i2": "INT16", "<i4": "INT32", "<i8": "INT64", "|u1": "UINT8", "<u2": "UINT16", "<u4": "UINT32",
  "<u8": "UINT64", "<f2": "FP16", "<f4": "FP32", "<f8": "FP64",
};

/** The array of a file: { datatype, shape, data }. Throws an Error that says what the file has. */
export function readNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (String.fromCharCode(...bytes.slice(1, 6)) !== "NUMPY") throw new Error("this is no .npy file: it does not begin with NUMPY");
  const view = new DataView(buffer);
  const isShort = bytes[6] === 1;
  const begin = isShort ? 10 : 12;
  const end = begin + (isShort ? view.getUint16(8, true) : view.getUint32(8, true));
  const head = new TextDecoder("latin1").decode(bytes.slice(begin, end));
  const kind = /'descr':\s*'([^']+)'/.exec(head)?.[1];
  const datatype = DATATYPES[kind];
  if (!datatype) throw new Error(`the file has elements of NumPy's type ${kind ?? "with fields"}: expected numbers, such as <f4`);
  if (/'fortran_order':\s*True/.test(head)) throw new Error("the array is in Fortran order: save np.ascontiguousarray(array)");
  const shape = /'shape':\s*\(([^)]*)\)/.exec(head)[1].split(",").filter((part) => part.trim()).map(Number);
  return { datatype, shape, data: dataOf(datatype, bytes.slice(end)) };
}

/** `data` in another datatype; throws an Error if an integer type cannot hold a value. */
export function converted(data, datatype) {
  const result = newData(datatype, data.length);
  const isBig = datatype.endsWith("INT64");
  for (let at = 0; at < data.length; at++) {
    const value = data[at];
    if (isBig && typeof value === "number" && !Number.isInteger(value))
      throw new Error(`element ${at + 1} is ${value}: expected a whole number`);
    result[at] = isBig ? BigInt(value) : Number(value);
    if (!isBig && !datatype.includes("FP") && datatype !== "BF16" && datatype !== "BOOL" && result[at] !== Number(value))
      throw new Error(`element ${at + 1} is ${value}, which ${datatype} cannot hold`);
  }
  return result;
}

/** A file with the tensor; BF16, which NumPy lacks, as the bits in uint16. */
export function writeNpy({ datatype, shape, data }) {
  const isBrain = datatype === "BF16";
  const kind = Object.keys(DATATYPES).find((key) => DATATYPES[key] === (isBrain ? "UINT16" : datatype));
  const body = isBrain ? binaryOf({ datatype: "UINT16", data: Uint16Array.from(data, brainBits) }) : binaryOf({ datatype, data });
  let head = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  head = `${head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11)}\n`;
  const prefix = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, head.length & 255, head.length >> 8]);
  return new Blob([prefix, head, body]);
}
