/**
 * The page pool as a grid: one square for each page, filled from below by its rows; outlined in the
 * color of the request that holds it, with its letter; the number of references if there are several.
 * Dashed: only a cache holds the page, which can be evicted at any time.
 * @module cache_pool
 */

import { h, replaceContent, svg } from "./dom.js";
import { t } from "./i18n.js";
import { hueOf, ownerName, requestsOf } from "./cache_names.js";
import { countReferences } from "./cache_state.js";

const PAGE_CELL = 36;
const GAP = 8;
const NARROW = 480;
const COLUMNS = { narrow: 6, wide: 12 };
export const MAX_DRAWN_PAGES = 1024;

/**
 * @typedef {Object} PoolView
 * @property {number} numPages
 * @property {number} pageSize
 * @property {number|null} selected
 * @property {Set<number>} marked   pages that belong to the selected node
 * @property {Set<number>} changed  pages of the operation that led here
 */

/** @param {(page: number) => void} onSelect */
export function createPool(onSelect) {
  const element = h("div", { class: "cache-pool" });
  let focus = 1;
  const choose = (page, isFocus) => {
    focus = page;
    onSelect(page);
    if (isFocus) element.querySelector(`[data-page="${page}"]`)?.focus();
  };
  const draw = (state, view) => {
    const drawn = Math.min(view.numPages, MAX_DRAWN_PAGES);
    const columns = element.clientWidth && element.clientWidth < NARROW ? COLUMNS.narrow : COLUMNS.wide;
    const hadFocus = element.contains(document.activeElement);
    const cells = Array.from({ length: drawn }, (_, index) => pageCell(state, view, index + 1, columns, focus));
    const step = PAGE_CELL + GAP;
    const box = `0 0 ${columns * step - GAP + 2} ${Math.ceil(drawn / columns) * step - GAP + 2}`;
    const keys = (event) => onPoolKey(event, drawn, columns, (page) => choose(page, true));
    const click = (event) => {
      const page = event.target.closest("[data-page]")?.dataset.page;
      if (page) choose(Number(page), false);
    };
    const picture = svg("svg", { class: "pool-picture", viewBox: box, role: "group", "aria-label": t("cache.pool.label"), on: { keydown: keys, click } }, cells);
    replaceContent(element, picture);
    if (hadFocus) element.querySelector(`[data-page="${focus}"]`)?.focus();
  };
  return { element, draw, picture: () => element.querySelector("svg") };
}

function onPoolKey(event, numPages, columns, choose) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const page = Number(event.target.closest("[data-page]")?.dataset.page);
  if (!page) return;
  if (event.key === "Enter" || event.key === " ") choose(page);
  else if (event.key in steps) choose(Math.max(1, Math.min(numPages, page + steps[event.key])));
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** What a page is, in words. @param {import("./cache_state.js").CacheState} state @param {number} number @param {number} pageSize */
export function pageWords(state, number, pageSize) {
  const page = state.pages.get(number);
  if (!page) return t("cache.page.free", { page: number });
  const owners = [...page.owners].map(([owner, count]) => (count > 1 ? `${ownerName(owner)} ×${count}` : ownerName(owner)));
  return t("cache.page.held", { page: number, rows: page.rows, size: pageSize, owners: owners.join(", ") });
}

function pageCell(state, view, number, columns, focus) {
  const page = state.pages.get(number);
  const x = ((number - 1) % columns) * (PAGE_CELL + GAP) + 1;
  const y = Math.floor((number - 1) / columns) * (PAGE_CELL + GAP) + 1;
  const isSelected = number === view.selected;
  const classes = ["page-cell", page ? ownerClass(page) : "is-free"];
  if (view.marked.has(number)) classes.push("is-marked");
  if (view.changed.has(number)) classes.push("is-changed");
  const attributes = {
    class: classes.join(" "),
    transform: `translate(${x} ${y})`,
    role: "button",
    tabindex: number === focus ? "0" : "-1",
    "aria-label": pageWords(state, number, view.pageSize),
    "aria-pressed": String(isSelected),
    "data-page": number,
  };
  return svg("g", attributes, cellMarks(page, number, view.pageSize));
}

function ownerClass(page) {
  const [first] = requestsOf(page);
  return first === undefined ? "is-cached" : `request-${hueOf(first)}`;
}

function cellMarks(page, number, pageSize) {
  const frame = svg("rect", { class: "page-frame", width: PAGE_CELL, height: PAGE_CELL, rx: 4 });
  if (!page) return [frame, svg("text", { class: "page-number", x: PAGE_CELL / 2, y: PAGE_CELL / 2 + 4 }, number)];
  const height = ((PAGE_CELL - 6) * Math.min(page.rows, pageSize)) / pageSize;
  const names = requestsOf(page);
  const count = countReferences(page);
  return [
    svg("rect", { class: "page-rows", x: 3, y: PAGE_CELL - 3 - height, width: PAGE_CELL - 6, height, rx: 2 }),
    frame,
    svg("text", { class: "page-letter", x: PAGE_CELL / 2, y: PAGE_CELL / 2 + 5 }, names.length > 2 ? `${names[0]}+` : names.join("")),
    count > 1 ? svg("text", { class: "page-count", x: PAGE_CELL - 4, y: 11 }, count) : null,
  ];
}

/** Pages that an operation names. @param {Object|null} op @returns {Set<number>} */
export function pagesOfOp(op) {
  if (!op) return new Set();
  const pages = [op.page, op.from, ...(op.pages ?? []), ...(op.op?.startsWith("node_") ? (op.blocks ?? []).flat() : [])];
  return new Set(pages.filter((page) => page));
}
