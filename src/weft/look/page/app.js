/**
 * Boot: strings, shell, what the server says about its models, and the view of the address.
 *
 * A view module exports `mountX(root, context)`, which fills `root` and returns a `View`. It is
 * unmounted when another view, model or language is chosen.
 * @module app
 */

import { RequestError, getJson } from "./api.js";
import { watchConnection } from "./connection.js";
import { h, replaceContent } from "./dom.js";
import { chooseLanguage, loadStrings, t } from "./i18n.js";
import { createInspector } from "./inspector.js";
import { applyTheme, readPreference } from "./preferences.js";
import { createHeader, createRail, showKeys } from "./shell.js";
import { createStore } from "./state.js";
import { errorState, loadingState } from "./states.js";
import { createTokenStrip } from "./token_strip.js";

/** A view is loaded when it is first shown. */
const MOUNTS = {
  play: async () => (await import("./play.js")).mountPlay,
  walk: async () => (await import("./walk.js")).mountWalk,
  cache: async () => (await import("./cache.js")).mountCache,
};
const REMOUNTING = ["view", "model"];
const LOADING_POLL_MS = 1000;

/**
 * @typedef {Object} ModelInfo  an entry of /server_info; fields after is_loaded may be missing
 * @property {boolean} is_loaded
 * @property {"encoder-decoder"|"decoder"|"encoder"} [kind]
 * @property {boolean} [can_chat]
 * @property {number} [max_model_len]
 * @property {[string, string]|null} [languages]  codes of source and target
 * @property {Object<string, any>} [defaults]     sampling parameters in effect
 * @property {Object<string, any>} [architecture] parameters, layers, heads, kv_heads, width, ...
 * @property {Array<{text: string, target?: string}>} [examples]
 */

/**
 * @typedef {Object} Context  what a view is given
 * @property {import("./state.js").Store} store
 * @property {{version: string, settings: Object, models: Object<string, ModelInfo>}} server
 * @property {ModelInfo} model   the entry of the chosen model
 * @property {import("./inspector.js").Inspector} inspector
 * @property {import("./token_strip.js").TokenStrip} strip   hidden until a view sets tokens
 * @property {(items: import("./shell.js").RailItem[]) => void} setRail
 * @property {(sentence: string) => void} announce   reads a sentence aloud
 * @property {any} kept   what `keep` of this view has returned before it was drawn anew, or null
 */

/**
 * @typedef {Object} View
 * @property {(state: import("./state.js").PageState, changed: Set<string>) => void} update  fields other than view and model have changed
 * @property {() => void} unmount  ends requests and timers
 * @property {() => any} [keep]  before the view is drawn anew: `context.kept` of the next one
 * @property {(key: string) => boolean} [onKey]  a key outside of fields; true if it was used
 */

/** The page, once its strings are there. */
function createPage() {
  const store = createStore();
  const live = h("div", { class: "visually-hidden", "aria-live": "polite" });
  const announce = (sentence) => {
    live.textContent = sentence;
  };
  const main = h("main", { id: "main", tabindex: "-1" });
  const parts = {
    store,
    announce,
    live,
    main,
    inspector: createInspector(announce),
    strip: createTokenStrip(store),
    rail: createRail(),
    banners: h("div", { class: "banners" }),
    server: { models: {} },
    view: null,
    ticket: 0, // of the view that is being loaded
  };
  parts.header = createHeader(store, () => drawAnew(parts));
  watchConnection(parts.banners, () => loadServer(parts));
  return parts;
}

/** After a change of language. */
function drawAnew(parts) {
  parts.inspector.element.replaceWith((parts.inspector = createInspector(parts.announce)).element);
  remountView(parts);
}

function layout(parts) {
  const skip = h("button", { type: "button", class: "skip", on: { click: () => parts.main.focus() } }, t("shell.skip"));
  replaceContent(
    document.body,
    skip,
    parts.header.element,
    parts.banners,
    parts.strip.element,
    h("div", { class: "layout" }, parts.rail.element, parts.main, parts.inspector.element),
    parts.live,
  );
}

/** Ask the server for its models, until all that it loads are there; then show the view. */
async function loadServer(parts) {
  const loading = parts.view ? null : loadingState({ lines: 4, sentence: t("shell.connecting") });
  if (loading) replaceContent(parts.main, pageTitle(), loading);
  try {
    parts.server = await getJson("/server_info");
  } catch (error) {
    loading?.end();
    serverFailed(parts, error);
    return;
  }
  loading?.end();
  chooseModel(parts);
  remountView(parts);
}

function serverFailed(parts, error) {
  parts.header.update(parts.server.models);
  if (error instanceof RequestError && error.status === 503) {
    showLoading(parts, error.message);
    setTimeout(() => loadServer(parts), LOADING_POLL_MS);
    return;
  }
  if (!parts.view) replaceContent(parts.main, pageTitle(), errorState(error, () => loadServer(parts)));
}

/** The heading of the page while there is no view. */
function pageTitle() {
  return h("h1", { class: "visually-hidden" }, "Weft");
}

function showLoading(parts, sentence) {
  if (!parts.main.querySelector("[data-state=loading]")) replaceContent(parts.main, pageTitle(), loadingState({ lines: 4, sentence }));
}

/** The model of the address if it is served, otherwise the first one that is loaded. */
function chooseModel(parts) {
  const { models } = parts.server;
  const names = Object.keys(models);
  if (names.includes(parts.store.get().model)) return;
  parts.store.set({ model: names.find((name) => models[name].is_loaded) ?? names[0] ?? "" });
}

/** The same view again: it has what it had. */
function remountView(parts) {
  mountView(parts, parts.view?.keep?.() ?? null);
}

async function mountView(parts, kept = null) {
  const { store, server } = parts;
  const state = store.get();
  parts.ticket += 1;
  const mine = parts.ticket;
  parts.view?.unmount();
  parts.view = null;
  parts.header.update(server.models);
  parts.strip.setTokens([]);
  parts.inspector.show(null);
  parts.inspector.setSections();
  document.title = [t(`shell.${state.view}`), "Weft"].join(" · ");
  document.body.dataset.view = state.view;
  const model = server.models[state.model];
  if (!model) return;
  const root = h("div", { class: `view view-${state.view}` });
  replaceContent(parts.main, root);
  try {
    const mount = await loadView(state.view);
    if (mine === parts.ticket) parts.view = mount(root, contextOf(parts, model, kept));
  } catch (error) {
    if (mine === parts.ticket) replaceContent(root, pageTitle(), errorState(error, () => mountView(parts, kept)));
  }
}

/** The code and the texts of a view. */
async function loadView(name) {
  try {
    const [mount] = await Promise.all([MOUNTS[name](), loadStrings([name])]);
    return mount;
  } catch {
    throw new RequestError("", 0, "offline");
  }
}

/** @returns {Context} */
function contextOf(parts, model, kept) {
  const { store, server, strip, announce } = parts;
  return { store, server, model, strip, announce, kept, setRail: parts.rail.setItems, get inspector() { return parts.inspector; } };
}

function onStateChange(parts, state, changed) {
  if (REMOUNTING.some((name) => changed.has(name))) {
    mountView(parts);
    return;
  }
  parts.header.update(parts.server.models);
  parts.strip.update();
  parts.view?.update(state, changed);
}

const STEPS = { "[": ["layer", -1], "]": ["layer", 1], ",": ["head", -1], ".": ["head", 1] };

/** Keys that work everywhere but in fields. */
function onKeyDown(parts, event) {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === " " && event.target.closest?.("button, a, summary")) return; // it is pressed
  if (parts.view?.onKey?.(event.key)) event.preventDefault();
  else if (event.key === "?") showKeys();
  else if (event.key in STEPS && document.body.dataset.view !== "play") stepSelection(parts, ...STEPS[event.key]);
}

function stepSelection(parts, name, step) {
  const state = parts.store.get();
  const sizes = parts.server.models[state.model]?.architecture ?? {};
  const layers = Array.isArray(sizes.layers) ? sizes.layers.at(-1) : sizes.layers;
  const limit = (name === "layer" ? layers : sizes.heads) ?? 1;
  const next = Math.max(0, Math.min(limit - 1, (state[name] ?? (step > 0 ? -1 : limit)) + step));
  parts.store.set({ [name]: next });
}

/** Show the page. */
export async function startPage() {
  applyTheme(readPreference("theme") ?? "auto");
  await loadStrings(["shell"]);
  chooseLanguage();
  const parts = createPage();
  loadView(parts.store.get().view).catch(() => {}); // while the server is asked for its models
  parts.header.update({});
  layout(parts);
  parts.store.subscribe((state, changed) => onStateChange(parts, state, changed));
  window.addEventListener("hashchange", () => parts.store.readHash());
  window.addEventListener("popstate", () => parts.store.readHash());
  document.addEventListener("keydown", (event) => onKeyDown(parts, event));
  await loadServer(parts);
}

startPage();
