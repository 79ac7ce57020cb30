/**
 * Requests to the server that served this page: JSON, streams (SSE and lines of JSON) and arrays.
 * Errors are `RequestError` with the server's own sentence.
 * @module api
 */

import { readPreference, writePreference } from "./preferences.js";

/** A request that failed. */
export class RequestError extends Error {
  /**
   * @param {string} sentence what the server says, or what happened to the connection
   * @param {number} status HTTP status; 0: the server cannot be reached
   * @param {string|null} code such as `trace_expired`
   * @param {number|null} retryAfter seconds
   */
  constructor(sentence, status = 0, code = null, retryAfter = null) {
    super(sentence);
    this.name = "RequestError";
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Whether an exception says that the user or the page has stopped a request. */
export function isAborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

export function readApiKey() {
  return readPreference("key", true) ?? "";
}

/** Kept until the tab is closed. @param {string} key */
export function writeApiKey(key) {
  writePreference("key", key || null, true);
}

/**
 * @typedef {Object} RequestOptions
 * @property {AbortSignal} [signal]
 * @property {Object<string, string>} [headers]
 */

/** GET a JSON value. @param {string} path @param {RequestOptions} [options] */
export async function getJson(path, options = {}) {
  return (await sendRequest(path, undefined, options)).json();
}

/** POST a JSON value, receive another. @param {string} path @param {any} body @param {RequestOptions} [options] */
export async function postJson(path, body, options = {}) {
  return (await sendRequest(path, body, options)).json();
}

/**
 * POST (or GET, without a body) and iterate over what the server streams.
 * Server-sent events: `{event, data}`, data parsed; lines of JSON: `{event: "line", data}`.
 * Ends at `[DONE]` or with the connection; an error inside the stream is thrown.
 * @param {string} path
 * @param {any} body
 * @param {RequestOptions} [options]
 * @returns {AsyncGenerator<{event: string, data: any, id: string|null}>}
 */
export async function* streamRequest(path, body, options = {}) {
  const response = await sendRequest(path, body, options);
  const isEvents = (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
  const parts = isEvents ? readEvents(response.body) : readLines(response.body);
  for await (const part of parts) {
    if (part.data === "[DONE]") return;
    const data = JSON.parse(part.data);
    if (data?.error) throw new RequestError(sentenceOf(data, ""), 500, codeOf(data));
    yield { event: part.event, data, id: part.id };
  }
}

/**
 * GET an array of float32 numbers with its shape (headers X-Shape and X-Dtype).
 * @param {string} path
 * @param {RequestOptions} [options]
 * @returns {Promise<{data: Float32Array, shape: number[]}>}
 */
export async function getArray(path, options = {}) {
  const response = await sendRequest(path, undefined, options);
  const shape = (response.headers.get("x-shape") ?? "").split(",").filter(Boolean).map(Number);
  return { data: new Float32Array(await response.arrayBuffer()), shape };
}

/** DELETE something that this page has made on the server. @param {string} path */
export async function sendDelete(path) {
  await sendRequest(path, undefined, { method: "DELETE" });
}

/** A name of this tab: its traces and scratch engines do not take the places of another tab's. */
function sessionName() {
  const known = readPreference("session", true);
  if (known) return known;
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const name = [...bytes].map((one) => one.toString(16).padStart(2, "0")).join("");
  writePreference("session", name, true);
  return name;
}

let whenUnreachable = () => {};

/** What is called when a request does not reach the server. @param {() => void} listener */
export function listenUnreachable(listener) {
  whenUnreachable = listener;
}

async function sendRequest(path, body, { signal, headers = {}, method = body === undefined ? "GET" : "POST" } = {}) {
  const key = readApiKey();
  const sent = { ...headers };
  if (path.startsWith("/look")) sent["x-weft-session"] = sessionName();
  if (key) sent.authorization = `Bearer ${key}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (isAborted(error)) throw error;
    whenUnreachable();
    throw new RequestError("", 0, "offline");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    // a proxy's page: the status is all that is known
  }
  const after = response.headers.get("retry-after");
  const seconds = after !== null && Number.isFinite(Number(after)) ? Number(after) : null;
  return new RequestError(sentenceOf(data, `HTTP ${response.status}`), response.status, codeOf(data), seconds);
}

/** The sentence of any of the protocols' error objects. */
function sentenceOf(data, fallback) {
  const error = data?.error;
  return (typeof error === "string" ? error : error?.message) ?? data?.detail ?? fallback;
}

function codeOf(data) {
  return data?.error?.code ?? data?.error?.details?.error_code ?? data?.code ?? null;
}

async function* readLines(stream) {
  for await (const line of textLines(stream)) {
    if (line.trim()) yield { event: "line", data: line, id: null };
  }
}

async function* readEvents(stream) {
  let event = { name: "message", data: [], id: null };
  for await (const line of textLines(stream)) {
    if (line === "") {
      if (event.data.length) yield { event: event.name, data: event.data.join("\n"), id: event.id };
      event = { name: "message", data: [], id: null };
      continue;
    }
    const [field, value] = splitField(line);
    if (field === "data") event.data.push(value);
    else if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
  }
}

function splitField(line) {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  const value = line.slice(colon + 1);
  return [line.slice(0, colon), value.startsWith(" ") ? value.slice(1) : value];
}

/** Lines of a stream of bytes, without their ends. */
async function* textLines(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await readChunk(reader);
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function readChunk(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (isAborted(error)) throw error;
    throw new RequestError("", 0, "offline");
  }
}
