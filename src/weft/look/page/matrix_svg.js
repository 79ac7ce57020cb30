/**
 * A matrix with labels, outlines of the chosen row and cell, and selection by pointer or arrows. The
 * cells are one canvas inside an SVG, so that a T x T map has T + T labels and one canvas.
 * @module matrix_svg
 */

import { fitLabel, labelPixels } from "./bars_svg.js";
import { readPalette } from "./color_ramp.js";
import { h, svg, replaceContent } from "./dom.js";
import { cellAfterKey, paintMatrix } from "./heatmap_canvas.js";

const LABELED_CELL = 14;
const LARGEST_CELL = 32;
const LABEL_WIDTH = 72;
/** Beside labels that are turned because they are long: one character, or East Asian writing. */
const NEVER_TURNED = /^.$|[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;

/**
 * @typedef {Object} LabeledMatrix
 * @property {import("./heatmap_canvas.js").Matrix} matrix
 * @property {string[]} rowLabels
 * @property {string[]} columnLabels
 * @property {number} row      chosen row
 * @property {number} column   chosen column
 * @property {string} name     for readers of the screen
 */

/**
 * @param {{onChoose: (row: number, column: number) => void, onHover?: (row: number, column: number) => void}} handlers
 * @returns {{element: HTMLElement, draw: (shown: LabeledMatrix, width: number) => void, picture: () => Element}}
 */
export function createMatrixView({ onChoose, onHover }) {
  const element = h("div", { class: "matrix", tabindex: "0", role: "group" });
  const canvas = h("canvas", { "aria-hidden": "true" });
  let shown = null;
  let geometry = null;
  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * shown.matrix.columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * shown.matrix.rows);
    const isInside = row >= 0 && column >= 0 && row < shown.matrix.rows && column < shown.matrix.columns;
    return isInside ? [row, column] : null;
  };
  element.addEventListener("click", (event) => {
    const cell = shown && cellOf(event);
    if (cell) onChoose(...cell);
  });
  element.addEventListener("pointermove", (event) => {
    const cell = shown && onHover && cellOf(event);
    if (cell) onHover(...cell);
  });
  element.addEventListener("keydown", (event) => {
    const cell = shown && cellAfterKey(event.key, [shown.row, shown.column], shown.matrix.rows, shown.matrix.columns);
    if (!cell) return;
    event.preventDefault();
    onChoose(...cell);
  });
  const draw = (next, width) => {
    shown = next;
    geometry = matrixGeometry(next, width);
    element.setAttribute("aria-label", next.name);
    paintMatrix(canvas, next.matrix, readPalette(next.matrix.isSigned), geometry.width, geometry.height);
    replaceContent(element, matrixPicture(next, geometry, canvas));
  };
  return { element, draw, picture: () => savedPicture(element, canvas, geometry) };
}

function matrixGeometry({ matrix, rowLabels, columnLabels }, width) {
  const widest = Math.max(0, ...rowLabels.map(labelPixels));
  const left = Math.min(LABEL_WIDTH, widest + 8);
  const room = Math.max(48, width - left - 2);
  const exact = Math.min(LARGEST_CELL, room / matrix.columns, (1.2 * room) / matrix.rows);
  const cell = exact >= 1 ? Math.floor(exact) : exact;
  const hasLabels = cell >= LABELED_CELL;
  const top = hasLabels ? Math.min(LABEL_WIDTH, Math.max(...columnLabels.map(labelPixels)) + 8) : 0;
  const size = { width: Math.round(cell * matrix.columns), height: Math.round(cell * matrix.rows) };
  return { cell, hasLabels, left: hasLabels ? left : 0, top, ...size };
}

function matrixPicture(shown, geometry, canvas) {
  const { left, top, width, height, cell } = geometry;
  const place = svg("foreignObject", { x: left, y: top, width, height }, canvas);
  const row = { x: left, y: top + shown.row * cell, width, height: Math.max(cell, 2) };
  const chosen = { x: left + shown.column * cell, y: row.y, width: Math.max(cell, 3), height: Math.max(cell, 3) };
  return svg(
    "svg",
    { width: left + width + 2, height: top + height + 2, class: "matrix-picture" },
    place,
    svg("rect", { x: left, y: top, width, height, class: "frame" }),
    geometry.hasLabels ? matrixLabels(shown, geometry) : null,
    svg("rect", { ...row, class: "chosen-row" }),
    shown.column < 0 ? null : svg("rect", { ...chosen, class: "chosen-cell" }),
  );
}

function matrixLabels({ rowLabels, columnLabels, row, column }, { left, top, cell }) {
  const rows = rowLabels.map((label, i) =>
    svg("text", { x: left - 6, y: top + (i + 0.5) * cell + 4, "text-anchor": "end", class: i === row ? "label chosen" : "label" }, fitLabel(label, LABEL_WIDTH)),
  );
  const doAllFit = columnLabels.every((label) => labelPixels(label) <= cell);
  const columns = columnLabels.map((label, i) => {
    const x = left + (i + 0.5) * cell;
    const text = fitLabel(label, LABEL_WIDTH);
    const isUpright = labelPixels(text) <= cell && (doAllFit || NEVER_TURNED.test(text));
    const turn = isUpright ? { x, y: top - 6, "text-anchor": "middle" } : { transform: `translate(${x + 4},${top - 6}) rotate(-90)` };
    return svg("text", { ...turn, class: i === column ? "label chosen" : "label" }, text);
  });
  return svg("g", {}, rows, columns);
}

/** The picture as it is saved: the canvas is an image. It is in the page while it is read. */
function savedPicture(element, canvas, geometry) {
  const picture = element.querySelector("svg");
  if (!picture) return null;
  const copy = picture.cloneNode(true);
  const { left, top, width, height } = geometry;
  const image = svg("image", { x: left, y: top, width, height, href: canvas.toDataURL("image/png") });
  copy.querySelector("foreignObject").replaceWith(image);
  const hidden = h("div", { class: "offscreen", "aria-hidden": "true" }, copy);
  element.append(hidden);
  setTimeout(() => hidden.remove(), 2000);
  return copy;
}
