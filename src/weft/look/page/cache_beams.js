/**
 * The hypotheses of a beam search as a tree: what they have in common stands once, and each branch
 * begins where two hypotheses differ. Branches that the search has given up are drawn in grey.
 * @module cache_beams
 */

import { languageOf, svg } from "./dom.js";
import { t } from "./i18n.js";
import { clippedText } from "./cache_tree.js";
import { tokensText } from "./cache_names.js";

const BEAM_ROW = 24;
const BEAM_INDENT = 20;
const BEAM_CHAR = 8;
const BEAM_BADGE = 96;
const MAX_ROWS = 24;

/** @typedef {{ids: number[], depth: number, parent: number|null, alive: number}} BeamRow */

/**
 * The rows of the tree, parents first; `alive` is how many of the last hypotheses go through one.
 * @param {number[][][]} lists  the hypotheses after each step, the last ones at the end
 * @returns {BeamRow[]}
 */
export function beamRows(lists) {
  const root = newBranch([]);
  for (const ids of lists.flat()) addHypothesis(root, ids, false);
  for (const ids of lists.at(-1) ?? []) addHypothesis(root, ids, true);
  const rows = [];
  for (const child of ordered(root)) collectRows(child, 0, null, rows);
  return rows;
}

function newBranch(ids) {
  return { ids, alive: 0, children: new Map() };
}

function addHypothesis(root, ids, isAlive) {
  let node = root;
  for (const id of ids) {
    if (!node.children.has(id)) node.children.set(id, newBranch([id]));
    node = node.children.get(id);
    if (isAlive) node.alive += 1;
  }
}

function ordered(node) {
  return [...node.children.values()].sort((one, other) => other.alive - one.alive || one.ids[0] - other.ids[0]);
}

/** One row for each run of tokens that the same hypotheses have; what was given up along it follows. */
function collectRows(node, depth, parent, rows) {
  const ids = [...node.ids];
  const branches = [];
  let last = node;
  for (let next = onlyNext(last); next; next = onlyNext(last)) {
    branches.push(...ordered(last).filter((child) => child !== next));
    ids.push(...next.ids);
    last = next;
  }
  const place = rows.push({ ids, depth, parent, alive: node.alive }) - 1;
  for (const child of [...ordered(last), ...branches]) collectRows(child, depth + 1, place, rows);
}

/** The child with which all hypotheses of a node go on, or the only one where none does. */
function onlyNext(node) {
  const [first, ...others] = ordered(node);
  return first?.alive === node.alive && (node.alive > 0 || !others.length) ? first : null;
}

/** @param {BeamRow[]} rows @param {Object} texts  token texts by id @param {number} width */
export function beamPicture(rows, texts, width) {
  const alive = rows.filter((row) => row.alive);
  const room = Math.max(0, MAX_ROWS - alive.length);
  const dropped = new Set(rows.filter((row) => !row.alive).slice(0, room));
  const shown = rows.filter((row) => row.alive || dropped.has(row));
  const marks = shown.map((row, place) => beamRow(row, place, shown, rows, texts, width));
  const size = { viewBox: `0 0 ${width} ${Math.max(1, shown.length) * BEAM_ROW}` };
  return svg("svg", { ...size, class: "beam-picture", role: "img", "aria-label": beamWords(rows, texts) }, marks);
}

/** What goes on and how much was given up, in words. */
export function beamWords(rows, texts) {
  const common = rows.length === 1 || rows[0]?.alive === Math.max(...rows.map((row) => row.alive)) ? rows[0] : null;
  const given = rows.filter((row) => !row.alive).length;
  const alive = rows.filter((row) => row.depth === 0).reduce((sum, row) => sum + row.alive, 0);
  return t("cache.beams.words", { n: alive, given, text: common ? tokensText(common.ids, texts) : "" });
}

function beamRow(row, place, shown, rows, texts, width) {
  const [x, y] = [row.depth * BEAM_INDENT + 8, place * BEAM_ROW + BEAM_ROW / 2];
  const parent = row.parent === null ? -1 : shown.indexOf(rows[row.parent]);
  const text = tokensText(row.ids, texts);
  const columns = Math.max(4, Math.floor((width - x - BEAM_BADGE - BEAM_INDENT) / BEAM_CHAR));
  const line = parent < 0 ? null : svg("path", { class: "tree-line", d: `M${x - BEAM_INDENT} ${parent * BEAM_ROW + BEAM_ROW / 2 + 4}V${y}H${x - 4}` });
  const badge = row.alive ? (row.alive > 1 ? t("cache.beams.alive", { n: row.alive }) : "") : t("cache.beams.given");
  return svg(
    "g",
    { class: row.alive ? "tree-node is-locked" : "tree-node is-given" },
    line,
    svg("circle", { class: "tree-dot", cx: x, cy: y, r: 4 }),
    svg("text", { class: "tree-text", x: x + BEAM_INDENT - 6, y: y + 4, lang: languageOf(text), direction: "ltr" }, clippedText(text, columns)),
    svg("text", { class: "tree-badge", x: width - 8, y: y + 4 }, badge),
  );
}
