/**
 * The cache of the serving engine as it changes: read-only events of GET /look/cache. Requests have
 * the letters a, b, c in the order in which the page has seen them; text of other callers does not
 * arrive here, only its length.
 * @module cache_live
 */

import { RequestError, isAborted, streamRequest } from "./api.js";
import { createCacheHistory } from "./cache_history.js";
import { requestOf } from "./cache_names.js";
import { cacheStateJson } from "./cache_state.js";

const MAX_LIVE_OPS = 20000;
const LETTERS = 26;

/**
 * @typedef {Object} LiveSession  what the drawing reads, as a scratch session
 * @property {true} isLive
 * @property {import("./cache_history.js").CacheHistory} history  null until the snapshot has arrived
 * @property {{num_pages: number, page_size: number, requests: Object[], is_idle: boolean}} snapshot
 * @property {Object<string, {text: string, bytes: string}>} texts
 * @property {() => void} close
 */

/**
 * @param {string} model
 * @param {{onChange: () => void, onError: (error: unknown) => void}} listeners
 * @returns {LiveSession}
 */
export function openLive(model, { onChange, onError }) {
  const request = new AbortController();
  const session = { isLive: true, history: null, snapshot: null, texts: {}, close: () => request.abort() };
  follow(session, model, request.signal, onChange).catch((error) => {
    if (!isAborted(error)) onError(error);
  });
  return session;
}

async function follow(session, model, signal, onChange) {
  const letters = createLetters();
  const path = `/look/cache?${new URLSearchParams({ model })}`;
  for await (const { event, data } of streamRequest(path, undefined, { signal })) {
    Object.assign(session.texts, data.texts);
    if (event === "snapshot") {
      const { num_pages, page_size, nodes } = data;
      const pages = data.pages.map((page) => ({ ...page, owners: lettered(page.owners, letters) }));
      session.snapshot = { num_pages, page_size, requests: [], is_idle: true };
      session.history = createCacheHistory({ pages, nodes });
    } else {
      takeOps(session, data.ops.map((op) => (op.owner === undefined ? op : { ...op, owner: letters(op.owner) })));
    }
    onChange();
  }
  throw new RequestError("", 0, "offline"); // the stream has no end of its own
}

/** Add one bundle of changes. A long past is forgotten: what is held now becomes the beginning. */
function takeOps(session, ops) {
  const { history } = session;
  if (history.length() + ops.length > MAX_LIVE_OPS) {
    session.history = createCacheHistory(cacheStateJson(history.stateAt(history.length())));
  }
  const step = { step: session.history.steps.length + 1, ops, arrived: [], preempted: [], finished: [], tokens: [], beams: {} };
  session.history.add(step);
}

function lettered(owners, letters) {
  return Object.fromEntries(Object.entries(owners).map(([owner, count]) => [letters(owner), count]));
}

/** A function that gives the owner of a page, such as "cmpl-7f/0", the name "a/0". */
function createLetters() {
  const names = new Map();
  return (owner) => {
    const request = requestOf(owner);
    if (request === null) return owner;
    if (!names.has(request)) names.set(request, lettersOf(names.size));
    return names.get(request) + owner.slice(request.length);
  };
}

/** 0 -> a, 25 -> z, 26 -> aa. */
function lettersOf(number) {
  const last = String.fromCharCode(97 + (number % LETTERS));
  return number < LETTERS ? last : lettersOf(Math.floor(number / LETTERS) - 1) + last;
}
