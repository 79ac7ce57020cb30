/**
 * Cache: what the engine holds while it writes. A scratch engine with few pages runs two prompts step
 * by step, or the serving engine is watched while it works; pool, tree and requests are drawn at any
 * moment of the past.
 * @module cache
 */

import { isAborted } from "./api.js";
import { createLiveMode } from "./cache_live_mode.js";
import { createPool, pagesOfOp, squareWords, squaresOf } from "./cache_pool.js";
import { tokensText } from "./cache_names.js";
import { liveRows, liveTable, requestRows, stateWords } from "./cache_requests.js";
import { isScratchGone, openScratch, requestsAt } from "./cache_session.js";
import { countReferences } from "./cache_state.js";
import { createSharing } from "./cache_sharing.js";
import { createTimeline } from "./cache_timeline.js";
import { createTree, nodeWords, nodesOfPage, orderedNodes } from "./cache_tree.js";
import { foreignText, h, replaceContent, uniqueId } from "./dom.js";
import { createFigure } from "./figure.js";
import { formatCount } from "./numbers.js";
import { t } from "./i18n.js";
import { termsLine } from "./terms.js";
import { emptyState, errorState, examplesOf, loadingState, notApplicable } from "./states.js";

const POOL = { min: 8, max: 64, standard: 24 };
const PAGE_SIZE = 4;
/** Tokens to write by the width of the beam: so many fit into the standard pool. */
const MAX_TOKENS = { 0: 24, 2: 16, 4: 10 };
const LIVE = "live";

/**
 * @param {HTMLElement} root
 * @param {import("./app.js").Context} context
 * @returns {import("./app.js").View}
 */
export function mountCache(root, context) {
  if (context.model.kind === "encoder") {
    replaceContent(root, notApplicable(t("cache.unavailable")));
    return { update() {}, unmount() {} };
  }
  const view = { context, root, session: null, moment: 0, page: null, node: null, ticket: 0, running: null, status: h("div", { class: "cache-status" }), result: h("div", { class: "cache-result", hidden: true }) };
  view.form = createCacheForm(view);
  view.pool = createPool((page) => selectPart(view, { page, node: null }));
  view.tree = createTree((node) => selectPart(view, { page: null, node }));
  view.timeline = createTimeline({ onMoment: (moment) => chooseMoment(view, moment), onStep: (count) => runEngine(view, (session) => session.step(count)) });
  view.sharing = createSharing(context, () => view.form.prompts(), () => (view.session?.isLive ? null : view.session));
  view.live = createLiveMode({ model: () => context.store.get().model, onStart: (session) => showLive(view, session), onMoment: () => showMoment(view, view.session.history.length()), onLength: () => view.timeline.show(view.moment), status: view.status });
  view.figures = createFigures(view);
  const figures = Object.values(view.figures).map((figure) => figure.element);
  replaceContent(view.result, view.timeline.element, figures);
  replaceContent(root, h("h1", { class: "visually-hidden" }, t("shell.cache")), modeSwitch(view), view.form.element, view.status, view.result, view.sharing.element);
  if (!isLiveChosen(view) && context.kept?.session) showKept(view);
  else startMode(view);
  const redraw = () => view.session && drawMoment(view);
  window.addEventListener("resize", redraw);
  return {
    update: (state, changed) => changed.has("panel") && startMode(view),
    onKey: (key) => view.timeline.onKey(key),
    keep() {
      const { moment, page, node, form } = view;
      const session = view.session?.isLive ? null : view.session;
      view.isKept = session !== null;
      return { session, moment, page, node, prompts: form.prompts(), ...form.settings() };
    },
    unmount() {
      view.ticket += 1;
      view.timeline.stop();
      view.live.stop();
      window.removeEventListener("resize", redraw);
      if (!view.isKept) view.session?.close();
    },
  };
}

function isLiveChosen(view) {
  return view.context.store.get().panel === LIVE;
}

/** A small engine of one's own, or the serving engine. */
function modeSwitch(view) {
  const { store } = view.context;
  const buttons = ["", LIVE].map((panel) => {
    const choose = () => store.set({ panel }, { push: true });
    return h("button", { type: "button", class: "tab", data: { panel }, on: { click: choose } }, t(panel ? "cache.mode.live" : "cache.mode.scratch"));
  });
  view.modes = buttons;
  return h("div", { class: "tabs", role: "group", "aria-label": t("cache.mode") }, buttons);
}

/** Begin with what is chosen: an empty form, or the stream of the serving engine. */
function startMode(view) {
  const isLive = isLiveChosen(view);
  view.ticket += 1;
  view.timeline.clear();
  view.session?.close();
  Object.assign(view, { session: null, page: null, node: null });
  view.context.inspector.show(null);
  view.context.setRail([]);
  view.form.setReady(false);
  view.form.element.hidden = view.sharing.element.hidden = isLive;
  view.result.hidden = true;
  for (const button of view.modes) button.setAttribute("aria-pressed", String(button.dataset.panel === (isLive ? LIVE : "")));
  if (isLive) view.live.start();
  else {
    view.live.stop();
    showCacheEmpty(view);
  }
}

/** The first state of the serving engine has arrived. */
function showLive(view, session) {
  view.session = session;
  view.result.classList.remove("is-dimmed");
  showEngine(view);
  showMoment(view, session.history.length());
}

/** A moment that the reader has chosen: the newest one is followed. */
function chooseMoment(view, moment) {
  if (view.session.isLive) view.live.setFollowing(moment === view.session.history.length());
  showMoment(view, moment);
}

/** The engine and the moment that were shown before the view was drawn anew. */
function showKept(view) {
  const { session, moment, page, node } = view.context.kept;
  Object.assign(view, { session, page, node });
  showEngine(view);
  showMoment(view, moment);
}

function showEngine(view) {
  const { history, snapshot, isLive } = view.session;
  view.form.setReady(!isLive);
  view.result.hidden = false;
  view.context.setRail(cacheRail(view));
  view.timeline.setHistory(history, snapshot.is_idle);
}

function showCacheEmpty(view) {
  const state = emptyState(t("cache.empty"), examplesOf(view.context.model).slice(0, 3), (one) => view.form.fill(one.text));
  replaceContent(view.status, state, scenarioButton(view));
}

function scenarioButton(view) {
  const start = () => openEngine(view, { scenario: view.form.prompts()[0] });
  return h("button", { type: "button", class: "button", on: { click: start } }, t("cache.scenario"));
}

function createCacheForm(view) {
  const { store, model, kept } = view.context;
  const id = uniqueId("cache");
  const field = (name, value) => h("textarea", { id: `${id}-${name}`, class: "field", rows: "2", spellcheck: "false", dir: "auto", value });
  const text = store.get().text || model.examples?.[0]?.text || examplesOf({}).at(-1).text;
  const prompts = kept?.prompts ?? [text, secondPrompt(text)];
  const first = field("first", prompts[0]);
  const second = field("second", prompts[1]);
  const pages = h("input", { id: `${id}-pages`, type: "range", min: POOL.min, max: POOL.max, value: kept?.num_pages ?? POOL.standard });
  const number = h("output", { for: pages.id, class: "number" }, pages.value);
  pages.addEventListener("input", () => replaceContent(number, pages.value));
  const beam = h("select", { id: `${id}-beam` }, [0, 2, 4].map((width) => h("option", { value: width, selected: width === kept?.beam }, width ? t("cache.beam.width", { n: width }) : t("cache.beam.none"))));
  const submit = (event) => {
    event.preventDefault();
    openEngine(view, {});
  };
  const send = h("button", { type: "button", class: "button", disabled: true, on: { click: () => sendSecond(view) } }, t("cache.send"));
  const label = (control, key) => h("label", { for: control.id }, t(key));
  const element = h(
    "form",
    { class: "cache-form", on: { submit, keydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit(event) } },
    h("div", { class: "cache-prompts" }, h("div", {}, label(first, "cache.first"), first), h("div", {}, label(second, "cache.second"), second)),
    h("div", { class: "cache-controls" }, h("span", {}, label(pages, "cache.pages"), pages, number), h("span", {}, label(beam, "cache.beam"), beam)),
    h("div", { class: "button-row" }, h("button", { type: "submit", class: "button button-main" }, t("cache.run")), send),
  );
  const fill = (value) => {
    first.value = value;
    second.value = secondPrompt(value);
  };
  const settings = () => ({ num_pages: Number(pages.value), beam: Number(beam.value) });
  return { element, fill, settings, prompts: () => [first.value.trim(), second.value.trim()], setReady: (isReady) => (send.disabled = !isReady) };
}

/** A prompt that begins as the first one: its last word is another. */
function secondPrompt(text) {
  const cut = Math.max(text.lastIndexOf(" "), Math.floor(text.length * 0.75));
  return `${text.slice(0, cut)}${/\s/.test(text) ? " again" : "吗"}`;
}

/** Make a scratch engine and send it the first prompt, or the scripted ones. */
async function openEngine(view, { scenario = null }) {
  const { num_pages } = view.form.settings();
  const model = view.context.store.get().model;
  view.session?.close();
  view.session = null;
  view.form.setReady(false);
  view.timeline.clear(); // the engine that was drawn is closed
  await runAlone(view, () => openEngine(view, { scenario }), async () => {
    const session = await openScratch({ model, num_pages: scenario ? null : num_pages, page_size: PAGE_SIZE, scenario });
    if (!scenario) await session.submit(requestBody(view, view.form.prompts()[0]));
    await session.step(1);
    return session;
  });
}

function requestBody(view, text) {
  const { beam } = view.form.settings();
  return { text, max_tokens: MAX_TOKENS[beam], temperature: 0, ...(beam ? { beam } : {}) };
}

function sendSecond(view) {
  const text = view.form.prompts()[1];
  const body = requestBody(view, text);
  const send = async (session) => {
    await session.submit(body);
    await session.step(1);
  };
  runEngine(view, send, true);
}

/** Change the scratch engine that is there; the newest moment is shown then. While it works, a
 * change is ignored unless it waits. */
async function runEngine(view, change, waits = false) {
  if (view.running && !waits) return view.running;
  while (view.running) await view.running;
  const { session } = view;
  if (session && !session.isLive) await runAlone(view, () => runEngine(view, change, waits), () => changedEngine(session, change));
}

/** The engine after a change; one that the server has dropped is run again. */
async function changedEngine(session, change) {
  try {
    await change(session);
    return session;
  } catch (error) {
    if (!isScratchGone(error)) throw error;
  }
  const again = await session.again();
  await change(again);
  return again;
}

async function runAlone(view, retry, work) {
  const running = withServer(view, retry, work);
  view.running = running;
  await running;
  if (view.running === running) view.running = null;
}

/** Run something that needs the server; its errors are shown in place. */
async function withServer(view, retry, work) {
  view.ticket += 1;
  const ticket = view.ticket;
  const loading = loadingState({ lines: 2, sentence: t("cache.loading") });
  replaceContent(view.status, loading);
  view.result.classList.add("is-dimmed");
  try {
    const session = await work();
    if (ticket !== view.ticket) {
      if (session !== view.session) session.close();
      return;
    }
    const isAgain = view.session !== null && view.session !== session;
    view.session = session;
    showEngine(view);
    showMoment(view, session.history.length());
    loading.end();
    if (isAgain) replaceContent(view.status, h("p", { class: "state state-expired", role: "status", data: { state: "expired" } }, t("cache.expired")));
    view.result.classList.remove("is-dimmed");
  } catch (error) {
    loading.end();
    if (ticket !== view.ticket || isAborted(error)) return;
    view.timeline.stop();
    replaceContent(view.status, errorState(error, retry));
  }
}

function createFigures(view) {
  const pool = createFigure({ id: "cache-pool", question: t("cache.pool.title"), picture: () => view.pool.picture(), table: () => poolTable(view) });
  pool.body.append(view.pool.element, h("p", { class: "hint" }, t("cache.pool.legend")), termsLine(["KV cache"]));
  const tree = createFigure({ id: "cache-tree", question: t("cache.tree.title"), picture: () => view.tree.picture(), table: () => treeTable(view) });
  tree.body.append(view.tree.element);
  const requests = createFigure({ id: "cache-requests", question: t("cache.requests.title"), picture: () => [...requests.body.querySelectorAll("svg.beam-picture")], table: () => requestTable(view) });
  return { pool, tree, requests };
}

/** Entries of the rail: where each figure is. */
function cacheRail(view) {
  const parts = [...Object.entries(view.figures), ...(view.session.isLive ? [] : [["why", view.sharing]])];
  return parts.map(([name, { element }]) => ({ id: name, label: t(`cache.rail.${name}`), onSelect: () => element.scrollIntoView({ block: "start" }) }));
}

function showMoment(view, moment) {
  view.moment = moment;
  view.timeline.setHistory(view.session.history, view.session.snapshot.is_idle);
  drawMoment(view);
}

function drawMoment(view) {
  const { session, moment } = view;
  const state = session.history.stateAt(moment);
  const op = session.history.opAt(moment);
  view.state = state;
  const node = view.node === null ? null : state.nodes.get(view.node);
  const marked = new Set((node?.blocks ?? []).flat());
  const numPages = session.snapshot.num_pages;
  view.pool.draw(state, { numPages, pageSize: session.snapshot.page_size, selected: view.page, marked, changed: pagesOfOp(op) });
  view.tree.draw(state, { texts: session.texts, selected: view.node, marked: nodesOfPage(state, view.page), changed: new Set(op && "node" in op ? [op.node] : []) });
  view.timeline.show(moment);
  drawLines(view, state, numPages);
  drawRequests(view);
  for (const figure of Object.values(view.figures)) figure.refresh();
  inspectPart(view, false);
}

function drawLines(view, state, numPages) {
  const held = [...state.pages.values()];
  const isCached = (page) => [...page.owners.keys()].every((owner) => owner === "prefix" || owner === "sources");
  const shared = held.filter((page) => countReferences(page) > 1).length;
  const { size, isPart } = squaresOf(state, numPages);
  const line = t("cache.pool.line", { held: held.length, all: formatCount(numPages), shared, cached: held.filter(isCached).length });
  view.figures.pool.setLine(line, size > 1 ? ` ${t("cache.pool.squares", { n: size })}` : null, isPart ? ` ${t("cache.pool.part", { n: formatCount(numPages - held.length) })}` : null);
  const nodes = [...state.nodes.values()].filter((node) => node.numTokens);
  const tokens = nodes.reduce((sum, node) => sum + node.numTokens, 0);
  view.figures.tree.setLine(t("cache.tree.line", { n: nodes.length, tokens, used: nodes.filter((node) => node.locks).length }));
}

function drawRequests(view) {
  const { session, moment, state, figures } = view;
  const { body } = figures.requests;
  figures.requests.setQuestion(t(session.isLive ? "cache.requests.live" : "cache.requests.title"));
  const rows = session.isLive ? liveRows(state) : requestRows(session, moment, body.clientWidth || 320);
  replaceContent(body, h("ul", { class: "request-list" }, rows));
}

function requestTable({ session, state, moment }) {
  if (session.isLive) return liveTable(state);
  const words = (ids) => tokensText(ids, session.texts);
  return {
    columns: [t("cache.rail.requests"), t("cache.column.state"), t("cache.column.cached"), t("cache.column.prompt"), t("cache.column.written")],
    rows: requestsAt(session, moment).map((one) => [one.name, stateWords(one), one.cached ?? "–", words(one.prompt), one.outputs.map(words).join(" / ")]),
  };
}

function selectPart(view, selection) {
  Object.assign(view, selection);
  drawMoment(view);
  inspectPart(view, true);
}

function inspectPart(view, isSpoken) {
  const { state, session, context } = view;
  if (view.page !== null) context.inspector.show(pageSelection(view, isSpoken));
  else if (state.nodes.has(view.node)) context.inspector.show({ title: t("cache.node", { node: view.node }), ...spokenWords(nodeWords(state.nodes.get(view.node), session.texts), isSpoken) });
  else context.inspector.show(null);
}

/** The selected page, or the pages of a square of a large pool. */
function pageSelection(view, isSpoken) {
  const { num_pages: numPages, page_size: pageSize } = view.session.snapshot;
  const words = spokenWords(squareWords(view.state, view.page, { numPages, pageSize }), isSpoken);
  if (squaresOf(view.state, numPages).size > 1) return { title: t("cache.rail.pool"), ...words };
  return { title: t("cache.page", { page: view.page }), ...words, facts: pageFacts(view) };
}

/** A sentence is read aloud; facts are not, so that stepping does not repeat them. */
function spokenWords(sentence, isSpoken) {
  return isSpoken ? { sentence } : { actions: h("p", {}, foreignText(sentence)) };
}

function pageFacts(view) {
  const page = view.state.pages.get(view.page);
  const nodes = [...nodesOfPage(view.state, view.page)];
  return [
    [t("cache.references"), page ? countReferences(page) : 0],
    [t("cache.rows"), `${page?.rows ?? 0} / ${view.session.snapshot.page_size}`],
    [t("cache.listed"), nodes.length ? nodes.join(", ") : "–"],
  ];
}

function poolTable(view) {
  const rows = [...view.state.pages].sort(([one], [other]) => one - other);
  return {
    columns: [t("cache.column.page"), t("cache.rows"), t("cache.references"), t("cache.column.holders")],
    rows: rows.map(([number, page]) => [number, page.rows, countReferences(page), [...page.owners.keys()].join(", ")]),
  };
}

function treeTable(view) {
  return {
    columns: [t("cache.column.node"), t("cache.column.parent"), t("cache.column.tokens"), t("cache.column.text"), t("cache.column.pages"), t("cache.column.locks")],
    rows: orderedNodes(view.state).map(({ id, node }) => [id, node.parent ?? "–", node.numTokens, node.tokens ? tokensText(node.tokens, view.session.texts) : "–", node.blocks.flat().join(" "), node.locks]),
  };
}
