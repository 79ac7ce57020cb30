/**
 * Panels 3 and 4: the vector that stands for each token, and how its position comes in.
 * @module walk_vectors
 */

import { largestSize, signedColor } from "./color_ramp.js";
import { h, replaceContent, svg } from "./dom.js";
import { headersOf, t } from "./i18n.js";
import { formula, sub } from "./mathml.js";
import { createMatrixView } from "./matrix_svg.js";
import { formatCount, formatShare } from "./numbers.js";
import { createPanel, slider } from "./walk_panel.js";
import { lengthOf, shapesOf } from "./walk_steps.js";
import { labelOf } from "./walk_trace.js";
import { joinedList, signedText } from "./walk_words.js";

const SHOWN_DIMS = 16;
const SHOWN_ROWS = 64;
const SHOWN_PAIRS = 12;

const stackOfPart = (part) => (part === "cross" ? "decoder" : part);

/** The first numbers of all vectors of a stage, if the trace has them: [token, 16]. */
function firstDims(trace, name) {
  return trace.inline(`${name}[:${SHOWN_DIMS}]`) ?? (trace.stages.get(name)?.shape.at(-1) <= SHOWN_DIMS ? trace.inline(name) : null);
}

/** Panel 3. @param {import("./walk_panel.js").Walk} walk */
export function embeddingPanel(walk) {
  const { trace } = walk;
  const view = { column: 0, all: null, row: null };
  const matrix = createMatrixView({ onChoose: (row, column) => { view.column = column; walk.select({ token: row + view.first, key: null }); panel.update(); } });
  const readout = h("p", { class: "readout" });
  const more = h("div", { class: "button-row" });
  const panel = createPanel(walk, {
    id: "embedding",
    question: ({ part, token }) => t("walk.p3.title", { token: labelOf(trace.tokensOf(part)[token]) }),
    content: [matrix.element, readout, more],
    draw: async (selection, isOpen) => {
      const name = `${stackOfPart(selection.part)}.embedding`;
      view.row = (await trace.array(name, { row: selection.token })).data;
      if (isOpen) drawEmbedding(trace, view, selection, name, { matrix, readout, more, panel });
      const first = joinedList(Array.from(view.row.slice(0, 3), (value) => signedText(value)));
      return t("walk.p3.result", { width: formatCount(view.row.length), first });
    },
    picture: () => matrix.picture(),
    table: () => ({ columns: headersOf("walk.p3.columns"), rows: Array.from(view.row, (value, i) => [String(i), value.toFixed(6)]) }),
    maths: () => [formula(sub("x", "t"), "=", "E", "[", sub("id", "t"), "]"), h("p", { class: "mono" }, shapesOf(trace, stackOfPart(walk.selection().part), ["ids", "embedding", "input"]))],
  });
  return panel;
}

function drawEmbedding(trace, view, selection, name, { matrix, readout, more, panel }) {
  const tokens = trace.tokensOf(selection.part);
  const shown = view.all?.name === name ? view.all : { ...firstDims(trace, name), name };
  const columns = shown.data ? shown.shape.at(-1) : view.row.length;
  view.first = Math.max(0, Math.min(tokens.length - SHOWN_ROWS, selection.token - SHOWN_ROWS / 2));
  const rows = shown.data ? Math.min(SHOWN_ROWS, tokens.length) : 1;
  if (!shown.data) view.first = selection.token;
  const values = shown.data ? shown.data.subarray(view.first * columns, (view.first + rows) * columns) : view.row;
  view.column = Math.min(view.column, columns - 1);
  const width = matrix.element.clientWidth || 320;
  matrix.draw(
    {
      matrix: { values, rows, columns, scale: largestSize(values), isSigned: true },
      rowLabels: tokens.slice(view.first, view.first + rows).map(labelOf),
      columnLabels: Array.from({ length: columns }, (_, i) => String(i)),
      row: selection.token - view.first,
      column: view.column,
      name: t("walk.p3.title", { token: labelOf(tokens[selection.token]) }),
    },
    width,
  );
  readout.textContent = `${labelOf(tokens[selection.token])} [${view.column}] = ${signedText(view.row[view.column], 4)} · ${t("walk.p3.dims", { width: formatCount(view.row.length), shown: columns })}`;
  replaceContent(more, columns < view.row.length && rows > 1 ? allButton(trace, view, name, panel) : null);
}

function allButton(trace, view, name, panel) {
  const load = async () => {
    view.all = { ...(await trace.array(name)), name };
    panel.update();
  };
  return h("button", { type: "button", class: "button", on: { click: load } }, t("walk.p3.all", { width: formatCount(view.row.length) }));
}

/** Panel 4. @param {import("./walk_panel.js").Walk} walk */
export function positionPanel(walk) {
  const { trace } = walk;
  const box = h("div", {});
  const position = slider(t("walk.p4.slider"), { min: 0, max: 1, step: 1, value: 0 }, (value) => walk.select({ token: value, key: null }));
  let shown = { columns: [], rows: [] };
  return createPanel(walk, {
    id: "position",
    question: () => t("walk.p4.title"),
    content: [position.element, box],
    draw: async (selection, isOpen) => {
      const stack = stackOfPart(selection.part);
      position.input.max = String(trace.tokensOf(selection.part).length - 1);
      position.set(selection.token);
      const drawn = await drawPosition(trace, stack, selection.token, isOpen, box);
      shown = drawn.table;
      return drawn.line;
    },
    picture: () => box.querySelector("svg"),
    table: () => shown,
    maths: () => [formula(sub("θ", "i"), "=", "position", "·", sub("f", "i")), h("p", { class: "mono" }, shapesOf(trace, stackOfPart(walk.selection().part), ["angles", "position", "input"]))],
  });
}

async function drawPosition(trace, stack, token, isOpen, box) {
  const width = box.clientWidth || 320;
  if (trace.has(`${stack}.angles`)) {
    const angles = (await trace.array(`${stack}.angles`, { row: token })).data;
    if (isOpen) replaceContent(box, anglePicture(angles, width));
    const line = t("walk.p4.rotary", { position: token, angle: signedText(angles[0]) });
    return { line, table: { columns: headersOf("walk.p4.columns").slice(0, 2), rows: Array.from(angles, (angle, i) => [String(i), angle.toFixed(6)]) } };
  }
  if (trace.has(`${stack}.position`)) {
    const names = ["embedding", "position", "input"];
    const vectors = await Promise.all(names.map(async (name) => (await trace.array(`${stack}.${name}`, { row: token })).data));
    if (isOpen) replaceContent(box, stripPicture(names, vectors, width));
    const rows = names.map((name, i) => [name, ...Array.from(vectors[i].slice(0, SHOWN_DIMS), (value) => value.toFixed(4))]);
    const line = t("walk.p4.added", { position: token, size: signedText(lengthOf(vectors[1])) });
    return { line, table: { columns: ["", ...Array.from({ length: SHOWN_DIMS }, (_, i) => String(i))], rows } };
  }
  replaceContent(box);
  const kind = trace.model.position;
  return { line: kind === "none" ? t("walk.p4.none") : t("walk.p4.bias", { kind }), table: { columns: headersOf("walk.p4.columns").slice(2), rows: [[kind]] } };
}

/** Each pair of dimensions as a hand turned by its angle. */
function anglePicture(angles, width) {
  const shown = Array.from(angles.slice(0, SHOWN_PAIRS));
  const perRow = Math.max(3, Math.min(shown.length, Math.floor(width / 68)));
  const dials = shown.map((angle, i) => {
    const [x, y] = [(i % perRow) * 68 + 30, Math.floor(i / perRow) * 84 + 30];
    return svg(
      "g",
      {},
      svg("circle", { cx: x, cy: y, r: 24, class: "dial" }),
      svg("line", { x1: x, y1: y, x2: x + 24 * Math.cos(angle), y2: y - 24 * Math.sin(angle), class: "hand" }),
      svg("text", { x, y: y + 42, "text-anchor": "middle", class: "label" }, signedText(angle)),
    );
  });
  return svg("svg", { width, height: Math.ceil(shown.length / perRow) * 84, role: "img", "aria-label": t("walk.p4.title") }, dials);
}

/** Rows of 16 colored numbers. */
function stripPicture(names, vectors, width) {
  const left = 84;
  const cell = Math.min(32, (width - left - 2) / SHOWN_DIMS);
  const scale = largestSize(vectors.flatMap((vector) => [...vector.slice(0, SHOWN_DIMS)]));
  const rows = names.map((name, row) => [
    svg("text", { x: left - 8, y: row * 28 + 18, "text-anchor": "end", class: "label" }, name),
    Array.from(vectors[row].slice(0, SHOWN_DIMS), (value, i) =>
      svg("rect", { x: left + i * cell, y: row * 28 + 2, width: cell - 1, height: 24, fill: signedColor(value, scale) }, svg("title", {}, signedText(value, 4))),
    ),
  ]);
  return svg("svg", { width, height: names.length * 28 + 2, role: "img", "aria-label": `±${formatShare(scale)}` }, rows);
}
