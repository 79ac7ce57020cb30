/**
 * Panels 7 and 11: the attention map of one head with its lines, for self-attention and for the
 * attention of a decoder to its source.
 * @module walk_attention
 */

import { linksBetween } from "./arcs_svg.js";
import { fitLabel } from "./bars_svg.js";
import { h, replaceContent, svg } from "./dom.js";
import { t } from "./i18n.js";
import { formula, over, root, sub, sup } from "./mathml.js";
import { createMatrixView } from "./matrix_svg.js";
import { formatCount, formatShare } from "./numbers.js";
import { reducedNotice } from "./states.js";
import { checkbox, createPanel, slider } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";
import { headLabel, looksSentence, strongestFew, strongestOf } from "./walk_words.js";

const LINE_ROW = 24;
const LINE_TOKENS = 40;
const SHOWN_KEYS = 16;
const TABLE_ROWS = 64;

/** Panel 7. @param {import("./walk_panel.js").Walk} walk */
export function attentionPanel(walk) {
  const question = ({ part, token }) => t("walk.p7.title", { token: labelOf(walk.trace.tokensOf(part)[token]) });
  return weightsPanel(walk, { id: "attention", isOpen: true, question, follow: (selection) => selection });
}

/** Panel 11: cross-attention, for the chosen target token. @param {import("./walk_panel.js").Walk} walk */
export function crossPanel(walk) {
  const follow = (selection) => crossSelection(walk.trace, selection);
  const question = (selection) => t("walk.p11.title", { token: labelOf(walk.trace.tokensOf("cross")[follow(selection).token]) });
  return weightsPanel(walk, { id: "cross", question, follow, hasHard: true });
}

/** The selection in the cross part: a source token that is chosen becomes the key. */
export function crossSelection(trace, selection) {
  if (selection.part === "cross") return selection;
  const layer = Math.min(selection.layer, trace.parts.cross - 1);
  if (selection.part === "decoder") return { ...selection, part: "cross", layer, key: 0 };
  return { ...selection, part: "cross", layer, token: 0, key: selection.token };
}

function weightsPanel(walk, { id, isOpen, question, follow, hasHard = false }) {
  const view = { hidesFirst: false, threshold: 0.05, isHard: false, row: null, selection: null };
  const select = (token, key) => walk.select({ stack: view.selection.part, layer: view.selection.layer, head: view.selection.head, token, key });
  const readout = h("p", { class: "readout" });
  const show = (token, key) => {
    readout.textContent = pairText(walk.trace, view, token, key);
  };
  const first = (walkTrace) => (view.hidesFirst && walkTrace.weightsNow(view.selection.part, view.selection.layer) ? 1 : 0);
  const matrix = createMatrixView({ onChoose: (token, key) => select(token, key + first(walk.trace)), onHover: (token, key) => show(token, key + first(walk.trace)) });
  const lines = h("div", { class: "lines" });
  const notice = h("div", {});
  const controls = h(
    "div",
    { class: "walk-controls" },
    checkbox(t("walk.p7.hideFirst"), false, (isOn) => { view.hidesFirst = isOn; panel.update(); }),
    slider(t("walk.p7.threshold"), { min: 0, max: 0.5, step: 0.01, value: view.threshold }, (value) => { view.threshold = value; panel.update(); }, formatShare).element,
    hasHard ? checkbox(t("walk.p11.hard"), false, (isOn) => { view.isHard = isOn; panel.update(); }) : null,
  );
  const content = [h("div", { class: "two-figures" }, h("div", {}, matrix.element, readout), lines), notice, controls, h("p", { class: "hint" }, t("walk.notExplanation"))];
  const panel = createPanel(walk, {
    id, isOpen, question, content,
    draw: (current, isShown) => drawWeights(walk, view, follow(current), isShown, { matrix, lines, notice, show, showTable: () => panel.showTable() }),
    picture: () => matrix.picture() ?? lines.querySelector("svg"),
    table: () => weightsTable(walk.trace, view),
    maths: () => [attentionFormula(), h("p", { class: "mono" }, shapeLine(walk.trace, view.selection))],
  });
  return panel;
}

async function drawWeights(walk, view, selection, isShown, parts) {
  const { trace } = walk;
  const row = (await trace.weightsRow(selection)).data;
  Object.assign(view, { selection, row });
  const line = t("walk.sentence", { text: looksSentence(trace, selection, row) });
  if (!isShown) return line;
  const isAllowed = await trace.maskRow(selection);
  view.isAllowed = isAllowed;
  const width = parts.lines.parentNode.clientWidth || 320;
  drawMatrix(walk, view, selection, parts.matrix, width >= 600 ? width / 2 : width);
  replaceContent(parts.lines, linesPicture(trace, view, selection, width >= 600 ? width / 2 - 24 : width));
  replaceContent(parts.notice, reducedPart(walk, view, selection, parts.showTable));
  parts.show(selection.token, selection.key);
  return line;
}

function drawMatrix(walk, view, selection, matrix, width) {
  const { trace } = walk;
  const { part, layer, head, token, key } = selection;
  const weights = trace.weightsNow(part, layer);
  const overview = weights ?? trace.overviewOf(part, layer);
  matrix.element.hidden = !overview;
  if (!overview) return;
  const [, rows, columns] = overview.shape;
  let values = overview.data.slice(head * rows * columns, (head + 1) * rows * columns);
  if (weights) maskCells(trace, selection, values, columns);
  const left = weights && view.hidesFirst ? 1 : 0; // a block of a long text has other tokens as well
  if (left) values = values.filter((_, at) => at % columns >= left);
  const [queries, keys] = [trace.tokensOf(part), trace.tokensOf(part, "key")];
  const place = (index, tokens, cells) => (weights ? index : Math.floor((index * cells) / tokens.length));
  matrix.draw(
    {
      matrix: { values, rows, columns: columns - left, scale: weights ? 1 : blockScale(view, values, columns) },
      rowLabels: weights ? queries.map(labelOf) : [],
      columnLabels: weights ? keys.slice(left).map(labelOf) : [],
      row: place(token, queries, rows),
      column: place(key, keys, columns) - left,
      name: t("walk.p7.map", { head: headLabel(selection) }),
    },
    Math.floor(width),
  );
}

/** The darkest color of a long text's blocks; without the first token it is that of the other blocks. */
function blockScale(view, values, columns) {
  return view.hidesFirst ? Math.max(...values.filter((_, at) => at % columns > 0)) : undefined;
}

/** Cells that the mask excludes become NaN, so that they are hatched and not just dark. */
function maskCells(trace, { part, layer }, values, columns) {
  const mask = trace.inline(`${trace.prefixOf(part, layer)}.mask`);
  if (!mask) return;
  for (let i = 0; i < values.length; i += 1) {
    if (!mask.data[Math.floor(i / columns) * columns + (i % columns)]) values[i] = NaN;
  }
}

/** Queries at the left, keys at the right, a line for each weight; a long text shows the largest. */
function linesPicture(trace, view, selection, width) {
  const keys = trace.tokensOf(selection.part, "key");
  const shownKeys = strongestFew(view.row, LINE_TOKENS).sort((a, b) => a - b);
  const top = new Map(shownKeys.map((key, place) => [key, place]));
  const labels = Math.min(120, Math.floor(width / 3));
  const height = shownKeys.length * LINE_ROW;
  const queryPlace = Math.max(0, Math.min(shownKeys.length - 1, shownKeys.filter((key) => key <= selection.token).length - 1));
  const yOf = (place) => (place + 0.5) * LINE_ROW;
  const first = view.hidesFirst ? 0 : -1;
  const strongest = strongestOf(view.row);
  const links = shownKeys
    .filter((key) => key !== first && view.row[key] >= view.threshold && (!view.isHard || key === strongest))
    .map((key) => ({ from: queryPlace, to: top.get(key), weight: view.row[key] }));
  const query = svg("text", { x: labels, y: yOf(queryPlace) + 4, "text-anchor": "end", class: "token chosen" }, fitLabel(labelOf(trace.tokensOf(selection.part)[selection.token]), labels));
  const names = shownKeys.map((key, place) => lineKey(keys[key], view.row[key], { x: width - labels - 48, width, y: yOf(place) + 4, isChosen: key === selection.key }));
  return svg(
    "svg",
    { width: Math.floor(width), height, role: "img", "aria-label": looksSentence(trace, selection, view.row) },
    linksBetween(links, { left: labels + 6, right: width - labels - 54, yOfLeft: yOf, yOfRight: yOf }),
    query,
    names,
  );
}

function lineKey(token, weight, { x, width, y, isChosen }) {
  const label = fitLabel(labelOf(token), width - x - 48);
  return svg(
    "g",
    {},
    svg("text", { x, y, class: isChosen ? "token chosen" : "token" }, label),
    svg("text", { x: width - 2, y, "text-anchor": "end", class: "number" }, formatShare(weight)),
  );
}

/** What a reduced view leaves out, with the part of the weight that it shows. */
function reducedPart(walk, view, selection, showTable) {
  if (!walk.trace.trace.limits.reduced) return null;
  const top = strongestFew(view.row, SHOWN_KEYS);
  const coverage = top.reduce((sum, key) => sum + view.row[key], 0);
  const token = labelOf(walk.trace.tokensOf(selection.part)[selection.token]);
  const values = { shown: top.length, all: formatCount(view.row.length), coverage: formatShare(coverage), token };
  return reducedNotice(t("walk.reduced", values), showTable);
}

function pairText(trace, view, token, key) {
  const { part, layer, head } = view.selection;
  const [query, name] = [labelOf(trace.tokensOf(part)[token]), labelOf(trace.tokensOf(part, "key")[key])];
  const weights = trace.weightsNow(part, layer);
  const weight = token === view.selection.token ? view.row[key] : weights?.data[(head * weights.shape[1] + token) * weights.shape[2] + key];
  if (weight === undefined) return "";
  const mask = trace.inline(`${trace.prefixOf(part, layer)}.mask`);
  const isAllowed = mask ? mask.data[token * mask.shape[1] + key] : 1;
  if (!isAllowed) return t("walk.masked", { query, key: name });
  return t("walk.pair", { query, key: name, weight: formatShare(weight, 4), head: headLabel(view.selection) });
}

/** The whole map of a short text; the chosen row of a long one, all keys. */
function weightsTable(trace, view) {
  const { part, layer, head, token } = view.selection;
  const [queries, keys] = [trace.tokensOf(part), trace.tokensOf(part, "key")];
  const weights = trace.weightsNow(part, layer);
  if (!weights || keys.length > TABLE_ROWS) {
    const rows = keys.map((key, i) => [`${i} ${labelOf(key)}`, view.row[i].toFixed(6)]);
    return { columns: [t("walk.p7.title", { token: labelOf(queries[token]) }), headLabel(view.selection)], rows };
  }
  const row = (query) => weights.data.subarray((head * queries.length + query) * keys.length).slice(0, keys.length);
  return {
    columns: ["", ...keys.map(labelOf)],
    rows: queries.map((query, i) => [labelOf(query), ...Array.from(row(i), (weight) => weight.toFixed(4))]),
  };
}

function attentionFormula() {
  return formula("A", "=", "softmax", "(", over(["Q", sup("K", "T")], root(sub("d", "k"))), "+", "mask", ")");
}

function shapeLine(trace, { part, layer }) {
  const prefix = trace.prefixOf(part, layer);
  const shape = (name) => {
    const stage = trace.stages.get(`${prefix}.${name}`);
    return stage ? `[${stage.shape}]` : "";
  };
  return `Q ${shape("q")}  K ${shape("k")}  →  A ${shape("weights")}`;
}

