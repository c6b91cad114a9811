// Requests to this server: addresses, keys, errors and server-sent events.

const ROOT = new URL("..", document.baseURI);
const STORED_KEYS = "stoker.keys";

/** An error response, or no response at all (status 0). */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  /** The header in which the server expects a key; null: the error is another one. */
  get missingHeader() {
    if (this.status === 401) return "Authorization";
    return /expecting header '([^']+)'/.exec(this.message)?.[1] ?? null;
  }
}

/** The address of a path of this server, also behind a proxy that puts a prefix before it. */
export const address = (path) => new URL(path.replace(/^\//, ""), ROOT);

/** The path of a model below `prefix`; version null: the version that serves by default. */
export const modelPath = (prefix, name, version) =>
  `${prefix}/models/${encodeURIComponent(name)}${version === null ? "" : `/versions/${version}`}`;

/** The keys by header, kept until the browser's tab is closed. */
export const keys = () => JSON.parse(sessionStorage.getItem(STORED_KEYS) ?? "{}");

export function setKey(header, value) {
  const text = header.toLowerCase() === "authorization" && !/^bearer /i.test(value) ? `Bearer ${value}` : value;
  sessionStorage.setItem(STORED_KEYS, JSON.stringify({ ...keys(), [header]: text }));
}

/** A response of status 2xx; throws a ServerError for any other. */
export async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(address(path), { ...options, headers: { ...keys(), ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw new ServerError(response.status, await errorText(response));
  return response;
}

export const getJson = async (path, options) => (await request(path, options)).json();

export const postJson = (path, body, options = {}) =>
  getJson(path, { ...options, method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

async function errorText(response) {
  const text = await response.text();
  try {
    // Triton's prefix says nothing about requests without an id.
    return JSON.parse(text).error.replace("[request id: <id_unknown>] ", "");
  } catch {
    return text || `The server responded with status ${response.status}.`;
  }
}

/** A line `name: value` as a pair. */
function fieldOf(line) {
  const colon = line.indexOf(":");
  return [line.slice(0, colon), line.slice(colon + 1).trim()];
}

/** The server-sent events of a response, each as { event, data } with data parsed from JSON. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map(fieldOf));
      if (fields.data) yield { event: fields.event ?? "message", data: JSON.parse(fields.data) };
    }
  }
}
