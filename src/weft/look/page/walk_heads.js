/**
 * Panel 8: all heads of a part as small maps; which of them read one word from another, stated
 * honestly if none does; and what the next token would be without some of them.
 * @module walk_heads
 */

import { barsSvg } from "./bars_svg.js";
import { readPalette } from "./color_ramp.js";
import { foreignText, h, replaceContent } from "./dom.js";
import { paintMatrix } from "./heatmap_canvas.js";
import { t } from "./i18n.js";
import { formatCount, formatShare } from "./numbers.js";
import { errorState } from "./states.js";
import { headStatistics, rankedHeads } from "./walk_find.js";
import { logitsOf, nameOfId, outputToken } from "./walk_output.js";
import { choice, createPanel } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";
import { headLabel, joinedList, signedText, strongestFew } from "./walk_words.js";

const THUMBNAIL = 48;
const SHOWN_FOUND = 6;
const SHOWN_DELTAS = 10;
const shownWords = new WeakMap();

/** Panel 8. @param {import("./walk_panel.js").Walk} walk */
export function headsPanel(walk) {
  const { trace } = walk;
  const view = { sort: "layer", part: "", heads: [], ablated: new Set(), pair: null, tiles: new Map(), shown: null };
  const grid = h("div", { class: "head-grid", role: "group" });
  const finder = createFinder(walk);
  const ablation = createAblation(walk, view);
  const options = ["layer", "entropy", "pair", "distance"].map((key) => [key, t(`walk.p8.sort.${key}`)]);
  const sort = choice(t("walk.p8.sort"), options, "layer", (value) => { view.sort = value; panel.update(); });
  grid.addEventListener("keydown", (event) => moveInGrid(event, grid));
  const panel = createPanel(walk, {
    id: "heads",
    isOpen: true,
    question: () => t("walk.p8.title"),
    content: [finder.element, sort.element, grid, ablation.element],
    draw: async (selection, isOpen) => {
      view.heads = await headStatistics(trace, selection);
      if (isOpen) {
        drawGrid(walk, view, grid, selection, ablation);
        await finder.update(selection);
        await ablation.update(selection);
      }
      return headsLine(trace, view.heads, selection);
    },
    picture: () => gridPicture(view),
    table: () => headsTable(view.heads),
  });
  return panel;
}

function headsLine(trace, heads, { part, token }) {
  const best = heads.reduce((a, b) => (b.entropy < a.entropy ? b : a));
  return t("walk.p8.result", { n: formatCount(heads.length), token: labelOf(trace.tokensOf(part)[token]), head: headLabel(best), entropy: formatShare(best.entropy) });
}

const SORTS = {
  layer: (a, b) => a.layer - b.layer || a.head - b.head,
  entropy: (a, b) => a.entropy - b.entropy,
  pair: (a, b) => b.pair - a.pair,
  distance: (a, b) => b.distance - a.distance,
};

function drawGrid(walk, view, grid, selection, ablation) {
  const order = [...view.heads].sort(SORTS[view.sort]);
  const palette = readPalette();
  grid.setAttribute("aria-label", t("walk.p8.title"));
  const tiles = order.map((head) => headTile(walk, view, head, ablation));
  if (view.sort === "layer") {
    const layers = Map.groupBy(tiles, (tile) => tile.layer);
    replaceContent(grid, [...layers.values()].map((row) => h("div", { class: "head-row" }, row.map((tile) => tile.element))));
  } else {
    replaceContent(grid, h("div", { class: "head-row" }, tiles.map((tile) => tile.element)));
  }
  for (const tile of tiles) {
    const isChosen = tile.layer === selection.layer && tile.head === selection.head;
    tile.button.setAttribute("aria-pressed", String(isChosen));
    tile.button.tabIndex = isChosen ? 0 : -1;
    const matrix = thumbnailMatrix(walk.trace, selection.part, tile);
    if (matrix) paintMatrix(tile.canvas, matrix, palette, THUMBNAIL);
  }
  const chosen = tiles.find((tile) => tile.button.tabIndex === 0);
  if (chosen && view.shown !== chosen) showInBox(grid, chosen.element);
  view.shown = chosen;
}

/** Scroll the box of the heads, and nothing else, so that the chosen one can be seen. */
function showInBox(grid, element) {
  const [box, one] = [grid.getBoundingClientRect(), element.getBoundingClientRect()];
  if (one.top < box.top) grid.scrollTop -= box.top - one.top;
  else if (one.bottom > box.bottom) grid.scrollTop += one.bottom - box.bottom;
}

function headTile(walk, view, { part, layer, head, entropy, pair }, ablation) {
  const key = `${part}.${layer}.${head}`;
  if (!view.tiles.has(key)) view.tiles.set(key, newTile(walk, view, { part, layer, head }, ablation));
  const tile = view.tiles.get(key);
  tile.button.setAttribute("aria-label", `${headLabel({ part, layer, head })}, ${t("walk.p8.sort.entropy")} ${formatShare(entropy)}, ${t("walk.p8.sort.pair")} ${formatShare(pair)}`);
  return tile;
}

function newTile(walk, view, name, ablation) {
  const key = `${name.part}.${name.layer}.${name.head}`;
  const canvas = h("canvas", { width: THUMBNAIL, height: THUMBNAIL, "aria-hidden": "true" });
  const button = h("button", { type: "button", class: "head-tile", on: { click: () => walk.select({ layer: name.layer, head: name.head, key: null }) } }, canvas);
  const tick = h("input", {
    type: "checkbox", disabled: !walk.hasServer || !walk.trace.headStack,
    "aria-label": `${t("walk.p8.ablate")} ${headLabel(name)}`,
    on: { change: () => { if (tick.checked) view.ablated.add(key); else view.ablated.delete(key); ablation.run(); } },
  });
  const element = h("div", { class: "head-cell" }, button, h("label", { class: "head-label" }, tick, h("span", { class: "number" }, `${name.layer}.${name.head}`)));
  return { ...name, element, button, canvas };
}

/** A head's weights, or their block means if the text is long. */
function thumbnailMatrix(trace, part, { layer, head }) {
  const array = trace.weightsNow(part, layer) ?? trace.overviewOf(part, layer);
  if (!array) return null;
  const [, rows, columns] = array.shape;
  return { values: array.data.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns };
}

/** Arrows move between tiles as they stand on the screen. */
function moveInGrid(event, grid) {
  const buttons = [...grid.querySelectorAll(".head-tile")];
  const place = buttons.indexOf(document.activeElement);
  if (place < 0) return;
  const row = buttons.filter((one) => one.offsetTop === buttons[0].offsetTop).length || 1;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[event.key];
  if (!step) return;
  event.preventDefault();
  buttons[Math.max(0, Math.min(buttons.length - 1, place + step))].focus();
}

/** All tiles side by side, for saving. */
function gridPicture({ heads, tiles }) {
  const layers = new Set(heads.map((one) => one.layer));
  const columns = Math.ceil(heads.length / layers.size);
  const canvas = h("canvas", { width: columns * (THUMBNAIL + 4), height: layers.size * (THUMBNAIL + 4) });
  const context = canvas.getContext("2d");
  for (const { part, layer, head } of heads) {
    const tile = tiles.get(`${part}.${layer}.${head}`);
    if (tile) context.drawImage(tile.canvas, head * (THUMBNAIL + 4), layer * (THUMBNAIL + 4));
  }
  return canvas;
}

function headsTable(heads) {
  const columns = [t("walk.head"), t("walk.p8.sort.entropy"), t("walk.p8.sort.pair"), t("walk.p8.sort.distance")];
  return { columns, rows: heads.map((one) => [`${one.layer}.${one.head}`, formatShare(one.entropy, 4), formatShare(one.pair, 4), formatShare(one.distance)]) };
}

/** "Find heads where A looks at B". */
function createFinder(walk) {
  const pickers = { query: h("select", {}), key: h("select", {}) };
  const results = h("div", { "aria-live": "polite" });
  const row = h("p", { class: "walk-controls" }, t("walk.p8.find"), " ", pickers.query, h("span", { class: "walk-control" }, t("walk.p8.looksAt"), pickers.key));
  pickers.query.setAttribute("aria-label", t("walk.p8.find"));
  pickers.key.setAttribute("aria-label", t("walk.p8.looksAt"));
  const find = async () => {
    const { part } = walk.selection();
    const words = { query: walk.trace.wordsOf(part), key: walk.trace.wordsOf(part, "key") };
    const [query, key] = [words.query[pickers.query.value], words.key[pickers.key.value]];
    if (!query || !key) return;
    try {
      replaceContent(results, findings(walk, await rankedHeads(walk.trace, part, query, key), query, key));
    } catch (error) {
      replaceContent(results, errorState(error, find));
    }
  };
  for (const select of Object.values(pickers)) select.addEventListener("change", find);
  const update = async (selection) => {
    fillWords(pickers.query, walk.trace.wordsOf(selection.part), selection.token);
    fillWords(pickers.key, walk.trace.wordsOf(selection.part, "key"), selection.key);
    if (walk.trace.hasAllWeights) await find();
  };
  return { element: h("div", { class: "finder" }, row, results), update };
}

/** The words as options, made again only if they are others. */
function fillWords(select, words, token) {
  const chosen = Math.max(0, words.findIndex((word) => word.tokens.includes(token)));
  if (shownWords.get(select) !== words) replaceContent(select, words.map((word, i) => h("option", { value: String(i) }, word.text)));
  shownWords.set(select, words);
  select.value = String(chosen);
}

function findings(walk, found, query, key) {
  const [best] = found.heads;
  const first = found.heads.filter((one) => one.rank === 0).length;
  const values = { query: query.text, key: key.text, head: headLabel(best), weight: formatShare(best.weight) };
  const sentence = first ? t("walk.p8.found", { ...values, n: first, all: found.heads.length }) : t("walk.p8.none", { ...values, rank: best.rank + 1 });
  const mean = { rank: found.mean.rank + 1, weight: formatShare(found.mean.weight) };
  const means = found.rollout
    ? t("walk.p8.mean", { ...mean, rolloutRank: found.rollout.rank + 1, rollout: formatShare(found.rollout.weight) })
    : t("walk.p8.meanOnly", mean);
  const items = found.heads.slice(0, SHOWN_FOUND).map((one) =>
    h("li", {}, h("button", { type: "button", class: "link", on: { click: () => walk.select({ layer: one.layer, head: one.head, token: query.tokens[0], key: key.tokens[0] }) } }, headLabel(one)), " ", h("span", { class: "number" }, `${formatShare(one.weight)}, ${t("walk.p8.rank", { n: one.rank + 1 })}`)),
  );
  return [h("p", {}, foreignText(sentence, "span")), h("p", {}, means), h("ol", { class: "found" }, items)];
}

/** The chosen position's logits without the ticked heads. */
function createAblation(walk, view) {
  const box = h("div", { "aria-live": "polite" });
  const element = h("div", { class: "ablation" }, h("p", { class: "hint" }, t("walk.p8.ablateHint")), box);
  let ablated = null;
  let names = [];
  const run = async () => {
    names = [...view.ablated];
    if (!names.length) {
      ablated = null;
      replaceContent(box);
      return;
    }
    const mine = names;
    try {
      const heads = mine.map((name) => name.split(".")).map(([part, layer, head]) => [part, Number(layer), Number(head)]);
      const answer = await walk.ablate(heads);
      if (mine !== names) return; // others were ticked meanwhile, which ends this request
      ablated = answer;
      await update(walk.selection());
    } catch (error) {
      if (mine === names) replaceContent(box, errorState(error, run));
    }
  };
  const update = async (selection) => {
    if (ablated) replaceContent(box, await deltaFigure(walk.trace, ablated, outputToken(walk.trace, selection), names));
  };
  element.hidden = !walk.trace.headStack || !walk.hasServer;
  return { element, run, update };
}

/** A change: its sign is always written. */
function changeText(value, digits = 2) {
  return `${value > 0 ? "+" : ""}${signedText(value, digits)}`;
}

/** Change of the logits of the most likely tokens. */
async function deltaFigure(trace, ablated, token, names) {
  const plain = await logitsOf(trace, token);
  const delta = (await ablated.array(`${trace.headStack}.logits_delta`, { row: token })).data;
  const shown = strongestFew(plain, SHOWN_DELTAS);
  const bars = shown.map((id) => ({ label: nameOfId(trace, token, id), value: delta[id], text: changeText(delta[id]) }));
  const line = t("walk.p8.ablated", { heads: joinedList(names), token: bars[0].label, delta: changeText(delta[shown[0]], 4) });
  return [h("p", { class: "ablation-line" }, line), barsSvg(bars, { width: 480, labelWidth: 120, isSigned: true, name: line })];
}
