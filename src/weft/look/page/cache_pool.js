/**
 * The page pool as a grid: one square for each page, filled from below by its rows; outlined in the
 * color of the request that holds it, with its letter; the number of references if there are several.
 * Dashed: only a cache holds the page, which can be evicted at any time. Of a large pool only the
 * held pages are drawn; if they are many, a square stands for several pages and has the number of
 * those that are held.
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
const MAX_SQUARES = 144;

/**
 * @typedef {Object} PoolView
 * @property {number} numPages
 * @property {number} pageSize
 * @property {number|null} selected
 * @property {Set<number>} marked   pages that belong to the selected node
 * @property {Set<number>} changed  pages of the operation that led here
 */

/**
 * What is drawn: the first page of each square, and how many pages a square stands for.
 * @param {import("./cache_state.js").CacheState} state @param {number} numPages
 * @returns {{size: number, numbers: number[], isPart: boolean}} isPart: free pages are left out
 */
export function squaresOf(state, numPages) {
  if (numPages <= MAX_SQUARES) return { size: 1, numbers: Array.from({ length: numPages }, (_, i) => i + 1), isPart: false };
  const held = [...state.pages.keys()].sort((one, other) => one - other);
  if (held.length <= MAX_SQUARES) return { size: 1, numbers: held, isPart: true };
  const size = Math.ceil(numPages / MAX_SQUARES);
  return { size, numbers: Array.from({ length: Math.ceil(numPages / size) }, (_, i) => i * size + 1), isPart: false };
}

/** @param {(page: number) => void} onSelect  the page, or the first of a square of several */
export function createPool(onSelect) {
  const element = h("div", { class: "cache-pool" });
  let focus = 1;
  const choose = (page, isFocus) => {
    focus = page;
    onSelect(page);
    if (isFocus) element.querySelector(`[data-page="${page}"]`)?.focus();
  };
  const draw = (state, view) => {
    const { size, numbers } = squaresOf(state, view.numPages);
    if (!numbers.length) {
      replaceContent(element, h("p", { class: "hint" }, t("cache.pool.empty")));
      return;
    }
    const columns = element.clientWidth && element.clientWidth < NARROW ? COLUMNS.narrow : COLUMNS.wide;
    if (!numbers.includes(focus)) [focus] = numbers;
    const hadFocus = element.contains(document.activeElement);
    const cells = numbers.map((number, place) => pageCell(state, view, number, { place, size, columns, focus }));
    const step = PAGE_CELL + GAP;
    const box = `0 0 ${columns * step - GAP + 2} ${Math.max(1, Math.ceil(numbers.length / columns)) * step - GAP + 2}`;
    const keys = (event) => onPoolKey(event, numbers, columns, (page) => choose(page, true));
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

function onPoolKey(event, numbers, columns, choose) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const page = Number(event.target.closest("[data-page]")?.dataset.page);
  if (!page) return;
  const place = numbers.indexOf(page) + (steps[event.key] ?? 0);
  if (event.key === "Enter" || event.key === " ") choose(page);
  else if (event.key in steps) choose(numbers[Math.max(0, Math.min(numbers.length - 1, place))]);
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

/** Pages of one square, the free ones left out. */
function heldPages(state, first, size) {
  return Array.from({ length: size }, (_, i) => state.pages.get(first + i)).filter(Boolean);
}

/** What a square is, in words: a page, or several. @param {import("./cache_state.js").CacheState} state @param {PoolView} view */
export function squareWords(state, first, view) {
  const { size } = squaresOf(state, view.numPages);
  if (size === 1) return pageWords(state, first, view.pageSize);
  const held = heldPages(state, first, size);
  const cached = held.filter((page) => !requestsOf(page).length).length;
  const last = Math.min(view.numPages, first + size - 1);
  const letters = [...new Set(held.flatMap(requestsOf))].sort();
  return t("cache.square", { first, last, held: held.length, cached, requests: letters.join(", ") || "–" });
}

function pageCell(state, view, number, { place, size, columns, focus }) {
  const x = (place % columns) * (PAGE_CELL + GAP) + 1;
  const y = Math.floor(place / columns) * (PAGE_CELL + GAP) + 1;
  const isIn = (page) => page >= number && page < number + size;
  const held = heldPages(state, number, size);
  const classes = ["page-cell", held.length ? ownerClass(held) : "is-free"];
  if ([...view.marked].some(isIn)) classes.push("is-marked");
  if ([...view.changed].some(isIn)) classes.push("is-changed");
  const attributes = {
    class: classes.join(" "),
    transform: `translate(${x} ${y})`,
    role: "button",
    tabindex: number === focus ? "0" : "-1",
    "aria-label": squareWords(state, number, view),
    "aria-pressed": String(view.selected !== null && isIn(view.selected)),
    "data-page": number,
  };
  return svg("g", attributes, size === 1 ? cellMarks(held[0], number, view.pageSize) : squareMarks(held, size));
}

function ownerClass(held) {
  const [first] = held.flatMap(requestsOf);
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
    count > 1 ? svg("text", { class: "page-count", x: PAGE_CELL - 5, y: 13 }, count) : null,
  ];
}

/** Filled by the share of its pages that is held, with their number. */
function squareMarks(held, size) {
  const height = ((PAGE_CELL - 6) * held.length) / size;
  const frame = svg("rect", { class: "page-frame", width: PAGE_CELL, height: PAGE_CELL, rx: 4 });
  return [
    held.length ? svg("rect", { class: "page-rows", x: 3, y: PAGE_CELL - 3 - height, width: PAGE_CELL - 6, height, rx: 2 }) : null,
    frame,
    held.length ? svg("text", { class: "page-letter", x: PAGE_CELL / 2, y: PAGE_CELL / 2 + 5 }, held.length) : null,
  ];
}

/** Pages that an operation names. @param {Object|null} op @returns {Set<number>} */
export function pagesOfOp(op) {
  if (!op) return new Set();
  const pages = [op.page, op.from, ...(op.pages ?? []), ...(op.op?.startsWith("node_") ? (op.blocks ?? []).flat() : [])];
  return new Set(pages.filter((page) => page));
}
