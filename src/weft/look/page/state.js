/**
 * The state of the page: one store, written to the hash of the address.
 *
 *     #/walk?model=demo&text=...&token=3&layer=0&head=2
 *
 * Only fields that differ from their defaults are in the hash. Every view reads the same fields:
 * `text`, `token`, `layer`, `head` and `stack` are one selection for the whole page.
 * @module state
 */

/** @typedef {"play"|"walk"|"cache"} ViewName */

/**
 * @typedef {Object} PageState
 * @property {ViewName} view
 * @property {string} model   name of a served model; "" until /server_info has arrived
 * @property {string} mode    of Play: chat, completion, translation or embeddings; "" for the model's first
 * @property {string} text    the input
 * @property {string} target  of Walk: the target text of an encoder-decoder; "" for the model's own
 * @property {string} system  system prompt of a chat
 * @property {Array<{role: string, content: string}>} turns  the conversation before `text`
 * @property {string} ids     of Walk: what its decoder reads, "3,5,7", in the place of a text
 * @property {number|null} token  selected position of the stack's tokens, from 0
 * @property {number|null} layer  selected layer, from 0
 * @property {number|null} head   selected head, from 0
 * @property {string} stack   "encoder", "decoder", "cross", or "" for the only one
 */

/** Kind and default of each field; a view adds its own fields here. */
export const STATE_FIELDS = {
  view: ["text", "play"],
  model: ["text", ""],
  mode: ["text", ""],
  text: ["text", ""],
  target: ["text", ""],
  system: ["text", ""],
  turns: ["json", []],
  token: ["integer", null],
  layer: ["integer", null],
  head: ["integer", null],
  stack: ["text", ""],
  // Play
  temperature: ["number", null],
  top_p: ["number", null],
  top_k: ["integer", null],
  max_tokens: ["integer", null],
  seed: ["integer", null],
  alternatives: ["integer", null],
  // Walk
  panel: ["text", ""],
  ids: ["text", ""],
  key: ["integer", null],
};

export const VIEW_NAMES = ["play", "walk", "cache"];
const MAX_HASH = 60000;

/** The state of a hash; unknown fields and invalid values are left out. @returns {PageState} */
export function parseHash(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const state = defaultState();
  for (const [name, value] of new URLSearchParams(query)) {
    if (name in STATE_FIELDS && name !== "view") setParsed(state, name, value);
  }
  state.view = VIEW_NAMES.includes(path) ? path : "play";
  return state;
}

/** @returns {PageState} */
export function defaultState() {
  return Object.fromEntries(
    Object.entries(STATE_FIELDS).map(([name, [, value]]) => [name, Array.isArray(value) ? [...value] : value]),
  );
}

function setParsed(state, name, value) {
  const kind = STATE_FIELDS[name][0];
  if (kind === "text") state[name] = value;
  else if (kind === "json") setParsedList(state, name, value);
  else {
    const number = value.trim() === "" ? NaN : Number(value);
    const isValid = Number.isFinite(number) && (kind === "number" || Number.isInteger(number));
    if (isValid) state[name] = number;
  }
}

function setParsedList(state, name, value) {
  try {
    const list = JSON.parse(value);
    const isTurn = (one) => one && typeof one.role === "string" && typeof one.content === "string";
    if (Array.isArray(list) && list.every(isTurn)) state[name] = list;
  } catch {
    // a hash that somebody has cut short: the default
  }
}

/** The hash of a state. @param {PageState} state */
export function formatHash(state) {
  const query = new URLSearchParams();
  for (const [name, [kind, standard]] of Object.entries(STATE_FIELDS)) {
    const value = state[name];
    if (name === "view" || value === standard || value === null || value === undefined) continue;
    const text = kind === "json" ? JSON.stringify(value) : String(value);
    if (text !== "[]") query.set(name, text);
  }
  const text = query.toString();
  return text ? `#/${state.view}?${text}` : `#/${state.view}`;
}

/**
 * @typedef {Object} Store
 * @property {() => PageState} get
 * @property {(patch: Partial<PageState>, options?: {push?: boolean}) => void} set  notifies if a
 *   field changes; `push` makes an entry in the browser's history
 * @property {(listener: (state: PageState, changed: Set<string>) => void) => (() => void)} subscribe
 *   returns what ends the subscription
 * @property {() => void} readHash  take over the hash, as after the back button
 */

/** A store that keeps the hash of the page up to date. @returns {Store} */
export function createStore() {
  let state = parseHash(location.hash);
  const listeners = new Set();
  const apply = (next) => {
    const changed = new Set(Object.keys(STATE_FIELDS).filter((name) => !isSame(state[name], next[name])));
    state = next;
    if (changed.size) for (const listener of [...listeners]) listener(state, changed);
    return changed.size > 0;
  };
  return {
    get: () => state,
    set(patch, { push = false } = {}) {
      if (apply({ ...state, ...patch })) writeHash(formatHash(state), push);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    readHash() {
      apply(parseHash(location.hash));
    },
  };
}

function isSame(one, other) {
  return one === other || (Array.isArray(one) && JSON.stringify(one) === JSON.stringify(other));
}

function writeHash(hash, push) {
  if (hash.length > MAX_HASH || hash === location.hash) return;
  try {
    history[push ? "pushState" : "replaceState"](null, "", hash);
  } catch {
    // a document without an address, as in a notebook's frame
  }
}
