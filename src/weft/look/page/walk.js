/**
 * Walk: how an answer came about. One text is run once; the map and all panels read the trace of
 * that pass and follow one selection of token, layer and head, which is in the address.
 * @module walk
 */

import { RequestError, getArray, getJson, isAborted, postJson } from "./api.js";
import { onThemeChange } from "./colors.js";
import { debounced, h, replaceContent, uniqueId } from "./dom.js";
import { hasText, t } from "./i18n.js";
import { formatShare } from "./numbers.js";
import { emptyState, errorState, examplesOf, loadingState } from "./states.js";
import { MissingArray } from "./trace_reader.js";
import { panelsOf } from "./walk_panels.js";
import { tokenProbability } from "./walk_output.js";
import { createTour } from "./walk_tour.js";
import { WalkTrace, labelOf, selectionOf } from "./walk_trace.js";
import { headLabel, looksSentence, strongestFew } from "./walk_words.js";

const TEXT_FIELDS = ["text", "target", "ids"];
const SELECTION_FIELDS = ["token", "layer", "head", "stack", "key"];

/**
 * @param {HTMLElement} root
 * @param {import("./app.js").Context} context
 * @returns {import("./app.js").View}
 */
export function mountWalk(root, context) {
  const session = {
    context, root, trace: null, panels: [], map: null, request: null, hasServer: context.hasServer !== false,
    result: h("div", { class: "walk-result" }), status: h("div", { class: "walk-status" }), notice: h("p", { class: "hint", role: "status" }),
    form: null, tour: null,
  };
  session.form = createForm(session);
  replaceContent(root, h("h1", { class: "visually-hidden" }, t("shell.walk")), session.form.element, session.status, session.notice, session.result);
  const redraw = debounced(() => updatePanels(session), 100);
  const stopTheme = onThemeChange(redraw);
  window.addEventListener("resize", redraw);
  showStart(session);
  return {
    update: (state, changed) => onWalkChange(session, changed),
    unmount: () => {
      session.request?.abort();
      stopTheme();
      redraw.cancel();
      window.removeEventListener("resize", redraw);
    },
    keep: () => (session.request === null && context.store.get().text ? session.trace : null),
    onKey: (key) => onWalkKey(session, key),
  };
}

function showStart(session) {
  const { context } = session;
  const { text } = context.store.get();
  if (context.trace) showTrace(session, new WalkTrace(context.trace));
  else if (context.kept) showTrace(session, withReader(session, context.kept));
  else if (text) runTrace(session);
  else showEmpty(session);
}

/** Nothing was run yet: the first example is in the box, the others below it. */
function showEmpty(session) {
  const examples = examplesOf(session.context.model);
  if (examples.length && !session.form.text.value) session.form.fill(examples[0]);
  const choose = (example) => {
    session.form.fill(example);
    submitText(session);
  };
  replaceContent(session.status, h("h2", { class: "walk-title" }, t("walk.empty.title")), emptyState(t("walk.empty.body"), examples.slice(1, 4), choose));
}

function createForm(session) {
  const { store, model } = session.context;
  const isTranslator = model.kind === "encoder-decoder";
  const id = uniqueId("walk");
  const text = h("textarea", { id, class: "field", rows: "2", spellcheck: "false", dir: "auto", value: store.get().text });
  const target = isTranslator ? h("textarea", { id: `${id}-target`, class: "field", rows: "1", spellcheck: "false", dir: "auto", value: store.get().target }) : null;
  const run = h("button", { type: "submit", class: "button button-main" }, t("walk.run"));
  const submit = (event) => {
    event.preventDefault();
    submitText(session);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const element = h(
    "form",
    { class: "walk-form", on: { submit, keydown: onKeyDown }, hidden: !session.hasServer },
    h("label", { for: id }, t("walk.text")),
    text,
    target ? [h("label", { for: target.id }, t("walk.target")), target] : null,
    h("div", { class: "button-row" }, run, tourButton(session)),
  );
  const fill = (example) => {
    text.value = example.text;
    if (target) target.value = example.target ?? "";
  };
  return { element, text, target, fill };
}

function tourButton(session) {
  return h("button", { type: "button", class: "button", on: { click: () => session.tour?.start() } }, t("walk.tour"));
}

/** Run what is in the fields. @param {number[]} [ids]  what the decoder reads, as exact tokens */
function submitText(session, ids = []) {
  const { text, target } = session.form;
  if (!text.value.trim()) {
    text.focus();
    return;
  }
  const before = session.context.store.get();
  const next = { text: text.value, target: target?.value ?? "", ids: ids.join(), token: null, layer: null, head: null, stack: "", key: null };
  session.context.store.set(next, { push: true });
  if (TEXT_FIELDS.every((name) => before[name] === next[name])) runTrace(session);
}

/** Ask for a trace; one that is under way is stopped, here and on the server. */
async function runTrace(session, sentence = "") {
  session.request?.abort();
  const request = new AbortController();
  session.request = request;
  const { text } = session.context.store.get();
  const values = { n: [...text].length, model: session.context.store.get().model };
  const loading = loadingState({ lines: 8, sentence: t("walk.loading", values), onStop: () => { request.abort(); showStopped(session); } });
  replaceContent(session.status, loading);
  session.result.classList.toggle("is-dimmed", session.trace !== null);
  try {
    const trace = await postTrace(session, { signal: request.signal });
    if (session.request !== request) return;
    session.request = null;
    loading.end();
    showTrace(session, trace);
    session.notice.textContent = sentence;
  } catch (error) {
    if (isAborted(error) || session.request !== request) return;
    loading.end();
    showFailure(session, error);
  }
}

async function postTrace(session, options, more = {}) {
  const { text, target, ids, model } = session.context.store.get();
  const exact = ids ? { [session.form.target ? "target" : "text"]: ids.split(",").map(Number) } : {};
  const body = { model, text, ...(target ? { target } : {}), detail: "auto", ...more, ...exact }; // a new one ends this session's old one
  return withReader(session, new WalkTrace(await postJson("/look", body, options)));
}

function withReader(session, walkTrace) {
  walkTrace.readArray = (path) => readStored(session, walkTrace.trace, path, getArray);
  return walkTrace;
}

/** A part of the trace; one that the server has dropped makes the page run the text again, once. */
async function readStored(session, answer, path, read) {
  try {
    return await read(path);
  } catch (error) {
    const isExpired = error instanceof RequestError && error.code === "trace_expired";
    if (isExpired && session.trace?.trace === answer && session.expired !== answer) {
      session.expired = answer;
      runTrace(session, t("walk.expired"));
    }
    throw error;
  }
}

function showStopped(session) {
  session.request = null;
  session.result.classList.remove("is-dimmed");
  if (session.trace) replaceContent(session.status);
  else showEmpty(session);
}

/** The server's sentence in place; the last result stays, dimmed. */
function showFailure(session, error) {
  replaceContent(session.status, errorState(error, () => runTrace(session)));
}

function showTrace(session, trace) {
  session.trace = null; // no updates until all panels are there
  session.result.classList.remove("is-dimmed");
  replaceContent(session.status);
  const walk = walkOf(session, trace);
  const { panels, absent } = panelsOf(walk);
  session.panels = panels;
  session.tour = createTour(walk, panels);
  const missing = absent.length ? h("section", { class: "panel absent", "aria-label": t("walk.notApplicable") }, absent.map((reason) => h("p", { class: "hint" }, reason))) : null;
  replaceContent(session.result, session.tour.element, panels.map((panel) => panel.element), missing);
  session.context.setRail(panels.map((panel) => railItem(session, panel)));
  session.trace = trace;
  updateStrip(session);
  const { store } = session.context;
  store.set(frozenSelection(trace, store.get(), {})); // the default, so that the strip and the address have it
  updatePanels(session);
  const linked = panels.find((panel) => panel.id === store.get().panel); // an address that names a panel
  if (linked) {
    showPanel(linked);
  }
}

function railItem(session, panel) {
  const name = `walk.rail.${panel.id}`;
  return { id: panel.id, label: hasText(name) ? t(name) : panel.question(), onSelect: () => openPanel(session, panel) };
}

function openPanel(session, panel) {
  showPanel(panel);
  session.context.store.set({ panel: panel.id });
}

/** Open a panel at the top of the window; again when its figure has grown, if nobody has scrolled. */
async function showPanel(panel) {
  const opened = panel.open();
  panel.element.scrollIntoView({ block: "start" });
  const before = window.scrollY;
  await opened;
  if (window.scrollY === before) panel.element.scrollIntoView({ block: "start" });
}

/** @returns {import("./walk_panel.js").Walk} */
function walkOf(session, trace) {
  const { store, announce } = session.context;
  return {
    trace,
    hasServer: session.hasServer,
    selection: () => selectionOf(trace, store.get()),
    select: (patch) => {
      session.isSelecting = true; // the key is part of the patch, or stays
      store.set(frozenSelection(trace, store.get(), patch));
      session.isSelecting = false;
    },
    announce,
    openPanel: (id) => openPanel(session, session.panels.find((panel) => panel.id === id)),
    rerun: (text, target, ids) => {
      session.form.fill({ text, target });
      submitText(session, ids);
    },
    neighbors: (side, token) => {
      const path = `/look/${encodeURIComponent(trace.trace.id)}/neighbors?${new URLSearchParams({ side, token })}`;
      return readStored(session, trace.trace, path, getJson);
    },
    lens: (positions) => {
      if (!session.hasServer) throw new MissingArray("lens");
      const path = `/look/${encodeURIComponent(trace.trace.id)}/lens?${new URLSearchParams(positions.map((one) => ["token", one]))}`;
      return readStored(session, trace.trace, path, getJson);
    },
    ablate: (heads) => postTrace(session, {}, { ablate: heads, target: trace.trace.target ?? undefined }),
  };
}

/** A change of the selection keeps what was chosen by default, so that it does not jump. */
function frozenSelection(trace, state, patch) {
  const { part, layer, head, token } = selectionOf(trace, state);
  return { stack: part, layer, head, token, ...patch };
}

function onWalkChange(session, changed) {
  if (TEXT_FIELDS.some((name) => changed.has(name))) {
    const { text, target } = session.context.store.get();
    session.form.fill({ text, target });
    if (text) runTrace(session);
    else showEmpty(session);
    return;
  }
  if (!session.trace || !SELECTION_FIELDS.some((name) => changed.has(name))) return;
  if (changed.has("stack")) updateStrip(session);
  if (changed.has("token") && !changed.has("key") && !session.isSelecting && session.context.store.get().key !== null) {
    session.context.store.set({ key: null }); // chosen in the strip: the key that it reads most
    return;
  }
  updatePanels(session);
}

/** The strip shows the tokens of the chosen part's queries. */
function updateStrip(session) {
  const { part } = selectionOf(session.trace, session.context.store.get());
  session.context.strip.setTokens(session.trace.tokensOf(part), part);
}

/** Draw all panels anew, once for all changes of this moment. */
function updatePanels(session) {
  if (!session.trace || session.isUpdating) return;
  session.isUpdating = true;
  queueMicrotask(() => {
    session.isUpdating = false;
    inspectSelection(session); // first: its numbers are the exact ones that are waited for
    for (const panel of session.panels) panel.update();
  });
}

/** The chosen token, head and pair, with four digits. */
async function inspectSelection(session) {
  const { trace, context } = session;
  const selection = selectionOf(trace, context.store.get());
  session.inspected = selection;
  const query = trace.tokensOf(selection.part)[selection.token];
  const keys = trace.tokensOf(selection.part, "key");
  let row;
  let p;
  try {
    [row, p] = await Promise.all([trace.weightsRow(selection).then((one) => one.data), tokenProbability(trace, selection)]);
  } catch {
    return; // the panels say what is missing
  }
  if (session.inspected !== selection) return; // another one was chosen meanwhile
  const pair = t("walk.pair", { query: labelOf(query), key: labelOf(keys[selection.key]), weight: formatShare(row[selection.key], 4), head: headLabel(selection) });
  context.inspector.show({
    title: headLabel(selection),
    piece: labelOf(query),
    sentence: t("walk.sentence", { text: looksSentence(trace, selection, row, 4) }),
    facts: [[t("walk.inspector.id"), String(query.id)], [t("walk.inspector.bytes"), spacedHex(query.bytes)], ...(p === null ? [] : [[t("walk.inspector.p"), formatShare(p, 4)]]), [t("walk.inspector.pair"), pair]],
    top: strongestFew(row, 5).map((key) => ({ text: keys[key].text, bytes: keys[key].is_special ? null : keys[key].bytes, p: row[key], chosen: key === selection.key })),
  });
}

function spacedHex(bytes) {
  return (bytes.match(/../g) ?? []).join(" ").toUpperCase() || "–";
}

/** Layers and heads by `[` `]` and `,` `.`, within the chosen part; Escape returns to the map. */
function onWalkKey(session, key) {
  if (!session.trace) return false;
  if (key === "Escape") return session.panels.some((panel) => panel.onEscape?.());
  const steps = { "[": ["layer", -1], "]": ["layer", 1], ",": ["head", -1], ".": ["head", 1] };
  if (!(key in steps)) return false;
  const [name, step] = steps[key];
  const selection = selectionOf(session.trace, session.context.store.get());
  const limit = name === "layer" ? session.trace.parts[selection.part] : session.trace.model.heads;
  const next = Math.max(0, Math.min(limit - 1, selection[name] + step));
  session.context.store.set(frozenSelection(session.trace, session.context.store.get(), { [name]: next, key: null }));
  return true;
}
