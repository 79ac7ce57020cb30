/**
 * The radix tree: one line for each node, indented below its parent. A node shows its text, its
 * pages, and how many sequences use it now. What is not drawn is counted.
 * @module cache_tree
 */

import { h, languageOf, replaceContent, svg } from "./dom.js";
import { t } from "./i18n.js";
import { nodeText } from "./cache_names.js";

const ROW = 32;
const INDENT = 20;
const CHAR = 8;
const BADGE = 132;
const MIN_WIDTH = 320;
export const MAX_NODES = 300;

/**
 * @typedef {Object} TreeView
 * @property {Object<string, any>} texts  token texts by id
 * @property {number|null} selected
 * @property {Set<number>} marked  nodes that list the selected page
 * @property {Set<number>} changed
 */

/** @param {(node: number) => void} onSelect */
export function createTree(onSelect) {
  const element = h("div", { class: "cache-tree" });
  let focus = null;
  const choose = (node, isFocus) => {
    focus = node;
    onSelect(node);
    if (isFocus) element.querySelector(`[data-node="${node}"]`)?.focus();
  };
  const draw = (state, view) => {
    const all = orderedNodes(state);
    const rows = all.slice(0, MAX_NODES);
    const width = Math.max(MIN_WIDTH, element.clientWidth || 640);
    if (!rows.some((row) => row.id === focus)) focus = rows[0]?.id ?? null;
    const hadFocus = element.contains(document.activeElement);
    const keys = (event) => onTreeKey(event, rows, (node) => choose(node, true));
    const click = (event) => {
      const node = event.target.closest("[data-node]")?.dataset.node;
      if (node) choose(Number(node), false);
    };
    const marks = rows.map((row, index) => nodeRow(row, index, rows, view, width, focus));
    const attributes = { class: "tree-picture", viewBox: `0 0 ${width} ${Math.max(1, rows.length) * ROW}`, role: "group", "aria-label": t("cache.tree.label"), on: { keydown: keys, click } };
    const left = all.length - rows.length;
    const more = left > 0 ? h("p", { class: "hint" }, t("cache.tree.more", { n: left })) : null;
    replaceContent(element, rows.length ? svg("svg", attributes, marks) : h("p", { class: "hint" }, t("cache.tree.empty")), more);
    if (hadFocus) element.querySelector(`[data-node="${focus}"]`)?.focus();
  };
  return { element, draw, picture: () => element.querySelector("svg") };
}

function onTreeKey(event, rows, choose) {
  const node = Number(event.target.closest("[data-node]")?.dataset.node);
  const place = rows.findIndex((row) => row.id === node);
  const steps = { ArrowUp: -1, ArrowDown: 1 };
  if (place < 0) return;
  if (event.key === "Enter" || event.key === " ") choose(node);
  else if (event.key in steps) choose(rows[Math.max(0, Math.min(rows.length - 1, place + steps[event.key]))].id);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Nodes in the order of the drawing, with their depths. @param {import("./cache_state.js").CacheState} state */
export function orderedNodes(state) {
  const children = new Map();
  for (const [id, node] of [...state.nodes].sort(([one], [other]) => one - other)) {
    children.set(node.parent, [...(children.get(node.parent) ?? []), { id, node }]);
  }
  const rows = [];
  const visit = (parent, depth) => {
    for (const { id, node } of children.get(parent) ?? []) {
      rows.push({ id, node, depth });
      visit(id, depth + 1);
    }
  };
  visit(null, 0);
  return rows;
}

function numPagesOf(node) {
  return node.blocks.flat().filter((page) => page).length;
}

/** What a node is, in words. @param {import("./cache_state.js").CacheNode} node @param {Object} texts */
export function nodeWords(node, texts) {
  const text = nodeText(node, texts);
  return t("cache.node.words", { text, tokens: node.numTokens, pages: numPagesOf(node), locks: node.locks });
}

function nodeRow({ id, node, depth }, index, rows, view, width, focus) {
  const y = index * ROW;
  const x = depth * INDENT + 4;
  const room = Math.max(4, Math.floor((width - x - BADGE - INDENT) / CHAR));
  const text = nodeText(node, view.texts);
  const classes = ["tree-node"];
  if (node.locks) classes.push("is-locked");
  if (view.marked.has(id)) classes.push("is-marked");
  if (view.changed.has(id)) classes.push("is-changed");
  const attributes = {
    class: classes.join(" "),
    role: "button",
    tabindex: id === focus ? "0" : "-1",
    "aria-label": nodeWords(node, view.texts),
    "aria-pressed": String(id === view.selected),
    "data-node": id,
  };
  return svg(
    "g",
    attributes,
    svg("rect", { class: "tree-row", x: x - 2, y: y + 2, width: width - x, height: ROW - 4, rx: 4 }),
    depth ? svg("path", { class: "tree-line", d: branchPath(rows, index, x, y) }) : null,
    svg("circle", { class: "tree-dot", cx: x + 8, cy: y + ROW / 2, r: 4 }),
    svg("text", { class: "tree-text", x: x + INDENT, y: y + ROW / 2 + 5, lang: languageOf(text), direction: "ltr" }, clippedText(text, room)),
    svg("text", { class: "tree-badge", x: width - 8, y: y + ROW / 2 + 5 }, badgeText(node)),
  );
}

function badgeText(node) {
  if (node.parent === null && !node.numTokens) return "";
  const pages = t("cache.node.pages", { n: numPagesOf(node) });
  return node.locks ? `${pages} · ${t("cache.node.used", { n: node.locks })}` : pages;
}

/** From the parent's dot down and to this node's dot. */
function branchPath(rows, index, x, y) {
  const parent = rows.findLastIndex((row, place) => place < index && row.depth === rows[index].depth - 1);
  const parentX = rows[parent].depth * INDENT + 12;
  return `M${parentX} ${parent * ROW + ROW / 2 + 4}V${y + ROW / 2}H${x + 4}`;
}

/** As many columns as fit: a Chinese character takes two. */
export function clippedText(text, columns) {
  let used = 0;
  let kept = "";
  for (const char of text) {
    used += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u.test(char) ? 2 : 1;
    if (used > columns - 1) return `${kept}…`;
    kept += char;
  }
  return kept;
}

/** Nodes whose blocks list a page. @param {import("./cache_state.js").CacheState} state @param {number|null} page */
export function nodesOfPage(state, page) {
  const ids = [...state.nodes].filter(([, node]) => page !== null && node.blocks.some((block) => block.includes(page)));
  return new Set(ids.map(([id]) => id));
}
