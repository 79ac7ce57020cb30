/**
 * Panel 13: the logit lens. What the LM head would say after each layer, at each position.
 * @module walk_lens
 */

import { fitLabel } from "./bars_svg.js";
import { rampColor } from "./color_ramp.js";
import { foreignText, h, replaceContent, svg } from "./dom.js";
import { t } from "./i18n.js";
import { formula, sub } from "./mathml.js";
import { formatShare } from "./numbers.js";
import { rovingItems } from "./roving.js";
import { outputToken } from "./walk_output.js";
import { createPanel } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";

const LENS_ROW = 32;
const LENS_CELL = 72;
const LENS_LEFT = 40;
const MAX_COLUMNS = 40;

/** Panel 13. @param {import("./walk_panel.js").Walk} walk */
export function lensPanel(walk) {
  const { trace } = walk;
  const box = h("div", { class: "scroll-box", tabindex: "0", role: "group", "aria-label": t("walk.p13.title") });
  const top = h("ol", { class: "found readout" });
  const view = { layer: null, lens: null };
  const reader = new LensReader(walk);
  const panel = createPanel(walk, {
    id: "lens",
    question: () => t("walk.p13.title"),
    content: [box, top],
    draw: async (selection, isOpen) => {
      if (!isOpen && !trace.trace.lens) return t("walk.p13.open", { layers: trace.stacks[trace.headStack] });
      const token = outputToken(trace, selection);
      const lens = await reader.read(shownPositions(trace, token));
      const place = lens.positions.indexOf(token);
      if (isOpen) {
        view.lens = lens;
        replaceContent(box, lensPicture(walk, lens, { token, selection, view, update: () => panel.update() }));
        showColumn(box, place);
        replaceContent(top, topFive(lens, view.layer ?? lens.top.length - 1, place));
      }
      return lensLine(trace, lens, token, place);
    },
    picture: () => box.querySelector("svg"),
    table: () => lensTable(trace, view.lens),
    maths: () => [formula("softmax", "(", sub("W", "vocab"), "norm", "(", sub("x", "layer"), ")", ")")],
  });
  return panel;
}

/** Columns of the picture: around the chosen token, or this alone where each is a pass of its own. */
function shownPositions(trace, token) {
  const { length } = trace.tokensOf(trace.headStack);
  if (trace.trace.limits.reduced) return [token];
  const first = Math.max(0, Math.min(length - MAX_COLUMNS, token - MAX_COLUMNS / 2));
  return Array.from({ length: Math.min(length, MAX_COLUMNS) }, (_, i) => first + i);
}

/** The lens of some positions: that of the trace, or what the server computes, which is kept. */
class LensReader {
  constructor(walk) {
    this.walk = walk;
    this.columns = new Map();
    this.keep(walk.trace.trace.lens);
  }

  keep(lens) {
    lens?.positions.forEach((position, place) => this.columns.set(position, lens.top.map((rows) => rows[place])));
  }

  async read(positions) {
    const missing = positions.filter((one) => !this.columns.has(one));
    if (missing.length) this.keep(await this.walk.lens(missing));
    const columns = positions.map((one) => this.columns.get(one));
    const top = columns[0].map((_, layer) => columns.map((column) => column[layer]));
    return { stack: this.walk.trace.headStack, positions, top };
  }
}

function lensLine(trace, lens, token, place) {
  const final = lens.top.at(-1)[place][0];
  const isSame = lens.top.map((rows) => rows[place][0].id === final.id);
  const layer = isSame.lastIndexOf(false) + 1;
  const values = { token: labelOf(trace.tokensOf(lens.stack)[token]), next: labelOf(final), layer };
  return t(layer === isSame.length - 1 ? "walk.p13.last" : "walk.p13.result", values);
}

/** Layers from the last, at the top, to the first; columns are positions. */
function lensPicture(walk, lens, { token, selection, view, update }) {
  const tokens = walk.trace.tokensOf(lens.stack);
  const shown = lens.positions;
  const layers = lens.top.length;
  const [left, head] = [LENS_LEFT, 24];
  const cells = lens.top.flatMap((rows, layer) =>
    shown.map((position, column) => lensCell(rows[column][0], {
      x: left + column * LENS_CELL,
      y: head + (layers - 1 - layer) * LENS_ROW,
      name: (best) => t("walk.p13.cell", { token: labelOf(tokens[position]), layer, next: labelOf(best), p: formatShare(best.p, 4) }),
      isChosen: position === token && layer === (view.layer ?? layers - 1),
      choose: () => {
        view.layer = layer;
        if (position === token) update();
        else walk.select({ stack: lens.stack, layer: selection.layer, token: position, key: null });
      },
    })),
  );
  const inOrder = Array.from({ length: layers }, (_, row) => cells.slice((layers - 1 - row) * shown.length, (layers - row) * shown.length));
  rovingItems("lens", inOrder.flat(), shown.length);
  const names = shown.map((position, column) => svg("text", { x: left + column * LENS_CELL + 4, y: 16, class: position === token ? "label chosen" : "label" }, fitLabel(labelOf(tokens[position]), LENS_CELL - 8)));
  const numbers = lens.top.map((_, layer) => svg("text", { x: left - 8, y: head + (layers - 1 - layer) * LENS_ROW + 20, "text-anchor": "end", class: "label muted" }, String(layer)));
  const size = { width: left + shown.length * LENS_CELL + 2, height: head + layers * LENS_ROW + 2, role: "group", "aria-label": t("walk.p13.title") };
  return svg("svg", { ...size, class: "wide" }, cells, names, numbers);
}

/** Scroll the box so that a column can be seen. */
function showColumn(box, place) {
  const middle = LENS_LEFT + (place + 0.5) * LENS_CELL;
  const isShown = middle > box.scrollLeft + LENS_LEFT && middle < box.scrollLeft + box.clientWidth - LENS_CELL / 2;
  if (!isShown) box.scrollLeft = middle - box.clientWidth / 2;
}

function lensCell(best, { x, y, name, isChosen, choose }) {
  return svg(
    "g",
    { class: "lens-cell", "aria-label": name(best), on: { click: choose } },
    svg("title", {}, name(best)),
    svg("rect", { x, y, width: LENS_CELL - 2, height: LENS_ROW - 2, class: "lens-box" }),
    svg("rect", { x, y: y + LENS_ROW - 6, width: Math.max(1, best.p * (LENS_CELL - 2)), height: 4, fill: rampColor(0.3 + 0.7 * best.p) }),
    svg("text", { x: x + 4, y: y + 18, class: "label" }, fitLabel(labelOf(best), LENS_CELL - 8)),
    isChosen ? svg("rect", { x, y, width: LENS_CELL - 2, height: LENS_ROW - 2, class: "chosen-cell" }) : null,
  );
}

function topFive(lens, layer, place) {
  return lens.top[layer][place].map((one) => h("li", {}, foreignText(labelOf(one)), " ", h("span", { class: "number" }, formatShare(one.p))));
}

function lensTable(trace, lens) {
  if (!lens) return { columns: [t("walk.layer")], rows: [] };
  const tokens = trace.tokensOf(lens.stack);
  const rows = lens.top.map((row, layer) => [String(layer), ...row.map(([best]) => `${labelOf(best)} ${formatShare(best.p, 4)}`)]);
  return { columns: [t("walk.layer"), ...lens.positions.map((position) => labelOf(tokens[position]))], rows };
}
