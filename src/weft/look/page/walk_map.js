/**
 * The map of the model: tokens down the left, layers as columns of cells (attention, cross-attention,
 * feed-forward), the distribution of the next token at the right, and curves for what the chosen
 * head reads for the chosen token. A cell is as dark as the size of what its step adds, compared
 * with its input. Choosing a cell opens its stage in the place of the map; Escape returns.
 * @module walk_map
 */

import { arcsFrom } from "./arcs_svg.js";
import { fitLabel, labelPixels } from "./bars_svg.js";
import { rampColor } from "./color_ramp.js";
import { h, replaceContent, svg } from "./dom.js";
import { t } from "./i18n.js";
import { formatCount, formatShare } from "./numbers.js";
import { addedShares, columnTitle, columnsOf } from "./walk_columns.js";
import { createPanel } from "./walk_panel.js";
import { createStage } from "./walk_stage.js";
import { labelOf } from "./walk_trace.js";
import { headLabel } from "./walk_words.js";

const MAP_MAX_ROWS = 40;
const SMALL_CELL = 8;
const MAP_ROW = 24;
const MAP_MARGIN = 44;
const MAP_LABELS = 84;
const MAP_HEADER = 40;
const MAP_OUTPUT = 208;
const MAP_CELL = 48;
const NAMED_CELL = 36;
const MAP_NARROW = 560;

/** @param {import("./walk_panel.js").Walk} walk */
export function mapPanel(walk) {
  const trace = walk.trace;
  const picture = h("div", { class: "map", tabindex: "0", role: "group", "aria-label": t("walk.map.name") });
  const stage = createStage(walk, () => showStage(null));
  const note = h("p", { class: "hint" });
  const stacks = Object.keys(trace.stacks).map((stack) => mapStack(trace, stack));
  let cursor = null;
  const showStage = (column, origin = null) => {
    cursor = column ?? cursor;
    picture.hidden = note.hidden = column !== null;
    if (column) stage.open(column, origin);
    else stage.close();
    if (!column) picture.focus();
  };
  const openAt = (stack, column, token, origin) => {
    walk.select({ stack: column.part, layer: column.layer, token, key: null });
    showStage(column, origin);
  };
  picture.addEventListener("keydown", (event) => onMapKey(event, walk, stacks, () => cursor, (to) => { cursor = to; }, openAt));
  const panel = createPanel(walk, {
    id: "map",
    isOpen: true,
    question: () => t("walk.map.title"),
    content: [picture, note, stage.element],
    draw: async (selection, isOpen) => {
      cursor = cursorFor(stacks, selection, cursor);
      if (isOpen) await drawMap(picture, walk, stacks, selection, cursor, openAt);
      note.textContent = t("walk.map.legend", { head: headLabel(selection), token: labelOf(trace.tokensOf(selection.part)[selection.token]) });
      if (stage.isOpen()) await stage.update(selection);
      return mapLine(trace, stacks, selection);
    },
    picture: () => picture.querySelector("svg"),
    table: () => mapTable(stacks),
  });
  return { ...panel, onEscape: () => stage.isOpen() && (showStage(null), true) };
}

function mapStack(trace, stack) {
  const columns = columnsOf(trace, stack);
  return { stack, columns, tokens: trace.tokensOf(stack), shares: columns.map((column) => addedShares(trace, column)) };
}

/** The column of the selection; its feed-forward cell if the cursor was there. */
function cursorFor(stacks, selection, cursor) {
  if (cursor?.layer === selection.layer && cursor.kind === "feedforward") return cursor;
  const all = stacks.flatMap((one) => one.columns);
  return all.find((one) => one.part === selection.part && one.layer === selection.layer && one.kind !== "feedforward");
}

function onMapKey(event, walk, stacks, getCursor, setCursor, openAt) {
  const cursor = getCursor();
  const { token } = walk.selection();
  const block = stacks.find((one) => one.columns.includes(cursor));
  if (!block) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openAt(block, cursor, token, null);
    return;
  }
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step) return;
  event.preventDefault();
  const place = block.columns.indexOf(cursor) + step[1];
  const column = block.columns[Math.max(0, Math.min(block.columns.length - 1, place))];
  const row = Math.max(0, Math.min(block.tokens.length - 1, token + step[0]));
  setCursor(column);
  walk.select({ stack: column.part, layer: column.layer, token: row, key: null });
  walk.announce(cellSentence(block, column, row));
}

function cellSentence(block, column, token) {
  const share = block.shares[block.columns.indexOf(column)]?.[token];
  return t("walk.map.cell", { token: labelOf(block.tokens[token]), what: columnTitle(column), share: share === undefined ? "–" : formatShare(share) });
}

async function drawMap(picture, walk, stacks, selection, cursor, openAt) {
  const width = Math.max(280, Math.floor(picture.clientWidth || 320));
  const weights = await walk.trace.weightsRow(selection);
  const layout = mapLayout(walk.trace, stacks, selection, width);
  const root = svg("svg", { width, height: layout.height, class: "map-picture" });
  for (const block of layout.blocks) root.append(stackPicture(block, layout, selection, cursor, openAt));
  root.append(mapArcs(walk, layout, selection, weights.data));
  root.append(outputPicture(walk.trace, layout, selection));
  replaceContent(picture, root);
}

/** Where everything is. A long text shows the rows around the chosen token. */
function mapLayout(trace, stacks, selection, width) {
  const isNarrow = width < MAP_NARROW;
  const left = MAP_MARGIN + MAP_LABELS;
  const gridWidth = width - left - (isNarrow ? 4 : MAP_OUTPUT);
  const most = Math.max(...stacks.map((one) => one.columns.length));
  const layers = Math.max(...stacks.map((one) => trace.stacks[one.stack]));
  const cell = Math.min(MAP_CELL, (gridWidth - 4 * layers) / most);
  let top = 0;
  const blocks = stacks.map((block) => {
    const isQueries = trace.sideOf(selection.part) === trace.sideOf(block.stack);
    const first = firstRow(block.tokens.length, isQueries ? selection.token : selection.key);
    const shown = Math.min(MAP_MAX_ROWS, block.tokens.length);
    const placed = { ...block, first, shown, top: top + MAP_HEADER, isQueries };
    top = placed.top + shown * MAP_ROW + 16;
    return placed;
  });
  const gridRight = left + most * cell + 4 * layers;
  return { blocks, left, cell, width, gridRight, isNarrow, bottom: top, height: top + (isNarrow ? 6 * MAP_ROW + 24 : 0) };
}

function firstRow(count, chosen) {
  return Math.max(0, Math.min(count - MAP_MAX_ROWS, chosen - Math.floor(MAP_MAX_ROWS / 2)));
}

function columnX(block, column, { left, cell }) {
  return left + block.columns.indexOf(column) * cell + 4 * column.layer;
}

function stackPicture(block, layout, selection, cursor, openAt) {
  const group = svg("g", {});
  for (let row = 0; row < block.shown; row += 1) group.append(tokenRow(block, block.first + row, layout, selection, openAt));
  for (const column of block.columns) group.append(...columnHeader(block, column, layout));
  group.append(svg("text", { x: layout.left - 8, y: block.top - 8, "text-anchor": "end", class: "label chosen" }, t(`walk.part.${block.stack}`)));
  if (block.columns.includes(cursor) && block.isQueries) {
    const room = layout.cell < SMALL_CELL ? 2 : 0; // the outline stands around a small cell, which can be seen in it
    const box = { x: columnX(block, cursor, layout) - room, y: block.top + (selection.token - block.first) * MAP_ROW, width: layout.cell + 2 * room, height: MAP_ROW };
    group.append(svg("rect", { ...box, class: "chosen-cell" }));
  }
  return group;
}

/** The layer's number over its first cell and, where there is room, the name of each step. */
function columnHeader(block, column, layout) {
  const x = columnX(block, column, layout);
  const isNamed = layout.cell >= NAMED_CELL;
  const isSkipped = layout.cell * 2 < 20 && column.layer % 5 !== 0;
  const layer = isNamed ? t("walk.map.layer", { layer: column.layer }) : String(column.layer);
  const names = [];
  if (column.kind === "attention" && !isSkipped) names.push(svg("text", { x: x + 1, y: block.top - (isNamed ? 24 : 8), class: "label" }, layer));
  if (isNamed) names.push(svg("text", { x: x + 1, y: block.top - 8, class: "label muted" }, t(`walk.map.short.${column.kind}`)));
  return names;
}

function tokenRow(block, token, layout, selection, openAt) {
  const y = block.top + (token - block.first) * MAP_ROW;
  const isChosen = block.isQueries && token === selection.token;
  const group = svg("g", {});
  const cells = block.columns.map((column, i) => {
    const share = block.shares[i]?.[token];
    const box = { x: columnX(block, column, layout), y: y + 1, width: Math.max(1, layout.cell - 1), height: MAP_ROW - 2 };
    const fill = share === undefined ? "none" : rampColor(share / (1 + share));
    const open = (event) => openAt(block, column, token, event);
    const kind = column.kind === "feedforward" ? "cell round" : "cell";
    return svg("rect", { ...box, fill, class: kind, on: { click: open } }, svg("title", {}, cellSentence(block, column, token)));
  });
  const name = fitLabel(labelOf(block.tokens[token]), MAP_LABELS - 8);
  group.append(svg("text", { x: layout.left - 8, y: y + 16, "text-anchor": "end", class: isChosen ? "token chosen" : "token" }, name));
  group.append(...cells);
  return group;
}

function mapArcs(walk, layout, selection, weights) {
  const queries = layout.blocks.find((block) => block.isQueries);
  const keySide = walk.trace.sideOf(selection.part, "key");
  const keys = layout.blocks.find((block) => walk.trace.sideOf(block.stack) === keySide);
  const yOf = (block, token) => block.top + (token - block.first + 0.5) * MAP_ROW;
  const labels = walk.trace.tokensOf(selection.part, "key").map(labelOf);
  const ends = [];
  for (let key = keys.first; key < keys.first + keys.shown; key += 1) {
    ends.push({ y: yOf(keys, key), weight: weights[key], name: `${labels[key]} ${formatShare(weights[key])}` });
  }
  const labelled = [queries, keys].flatMap((block) => block.tokens.slice(block.first, block.first + block.shown));
  const widest = Math.max(...labelled.map((token) => labelPixels(labelOf(token))));
  const x = layout.left - Math.min(MAP_LABELS, widest + 16);
  return arcsFrom(yOf(queries, selection.token), ends, x, Math.min(MAP_MARGIN, x));
}

/** The five most likely next tokens, beside the row that predicts them. */
function outputPicture(trace, layout, selection) {
  const stack = trace.headStack;
  const rows = stack && trace.trace.candidates[stack];
  if (!rows) return svg("g", {});
  const block = layout.blocks.find((one) => one.stack === stack);
  const token = block.isQueries ? selection.token : block.first;
  const candidates = (rows[token] ?? []).slice(0, 5);
  const x = layout.isNarrow ? layout.left : layout.gridRight + 24;
  const rowY = block.top + (token - block.first) * MAP_ROW;
  const y0 = layout.isNarrow ? layout.bottom + 16 : Math.max(MAP_HEADER, Math.min(rowY, layout.bottom - 5 * MAP_ROW - 16));
  const room = Math.min(MAP_OUTPUT - 24, layout.width - x);
  const group = svg("g", { class: "map-output" }, svg("text", { x, y: y0 - 8, class: "label muted" }, t("walk.map.next")));
  candidates.forEach((one, i) => {
    const y = y0 + i * MAP_ROW;
    group.append(svg("text", { x, y: y + 14, class: "token" }, fitLabel(labelOf(one), room - 56)));
    group.append(svg("text", { x: x + room - 2, y: y + 14, "text-anchor": "end", class: "number" }, formatShare(one.p)));
    group.append(svg("rect", { x, y: y + 19, width: Math.max(1, one.p * (room - 2)), height: 3, fill: rampColor(0.5 + one.p / 2) }));
  });
  if (!layout.isNarrow) group.append(svg("path", { d: `M${layout.gridRight + 2},${rowY + MAP_ROW / 2} H${x - 6}`, class: "axis" }));
  return group;
}

function mapLine(trace, stacks, selection) {
  const block = stacks.find((one) => trace.sideOf(one.stack) === trace.sideOf(selection.part));
  const shares = block.shares.map((column) => column?.[selection.token] ?? -1);
  const best = shares.indexOf(Math.max(...shares));
  if (shares[best] < 0) return "";
  const layers = formatCount(trace.model.layers.reduce((sum, count) => sum + count, 0));
  return t("walk.map.result", { layers, token: labelOf(block.tokens[selection.token]), what: columnTitle(block.columns[best]), share: formatShare(shares[best]) });
}

function mapTable(stacks) {
  const rows = stacks.flatMap((block) =>
    block.columns.map((column, i) => [columnTitle(column), ...block.tokens.map((_, token) => formatShare(block.shares[i]?.[token] ?? NaN, 4))]),
  );
  const longest = stacks.reduce((a, b) => (a.tokens.length >= b.tokens.length ? a : b));
  return { columns: [t("walk.layer"), ...longest.tokens.map((token) => (stacks.length > 1 ? String(token.i) : labelOf(token)))], rows };
}
