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
const MAX_COLUMNS = 40;

/** Panel 13. @param {import("./walk_panel.js").Walk} walk */
export function lensPanel(walk) {
  const { trace } = walk;
  const box = h("div", { class: "scroll-box", tabindex: "0", role: "group", "aria-label": t("walk.p13.title") });
  const top = h("p", { class: "readout" });
  const view = { layer: null };
  const panel = createPanel(walk, {
    id: "lens",
    question: () => t("walk.p13.title"),
    content: [box, top],
    draw: async (selection, isOpen) => {
      const lens = trace.trace.lens;
      if (!lens) return t("walk.p13.large");
      const token = outputToken(trace, selection);
      const place = lens.positions.indexOf(token);
      if (isOpen) {
        replaceContent(box, lensPicture(walk, lens, { token, selection, view, update: () => panel.update() }));
        replaceContent(top, topFive(lens, view.layer ?? lens.top.length - 1, place));
      }
      return lensLine(trace, lens, token, place);
    },
    picture: () => box.querySelector("svg"),
    table: () => lensTable(trace),
    maths: () => [formula("softmax", "(", sub("W", "vocab"), "norm", "(", sub("x", "layer"), ")", ")")],
  });
  return panel;
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
  const first = Math.max(0, Math.min(lens.positions.length - MAX_COLUMNS, lens.positions.indexOf(token) - MAX_COLUMNS / 2));
  const shown = lens.positions.slice(first, first + MAX_COLUMNS);
  const layers = lens.top.length;
  const [left, head] = [40, 24];
  const cells = lens.top.flatMap((rows, layer) =>
    shown.map((position, column) => lensCell(rows[first + column][0], {
      x: left + column * LENS_CELL,
      y: head + (layers - 1 - layer) * LENS_ROW,
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
  const names = shown.map((position, column) => svg("text", { x: left + column * LENS_CELL + 4, y: 16, class: position === token ? "token chosen" : "token" }, fitLabel(labelOf(tokens[position]), LENS_CELL - 8)));
  const numbers = lens.top.map((_, layer) => svg("text", { x: left - 8, y: head + (layers - 1 - layer) * LENS_ROW + 20, "text-anchor": "end", class: "label muted" }, String(layer)));
  const size = { width: left + shown.length * LENS_CELL + 2, height: head + layers * LENS_ROW + 2, role: "group", "aria-label": t("walk.p13.title") };
  return svg("svg", { ...size, class: "wide" }, cells, names, numbers);
}

function lensCell(best, { x, y, isChosen, choose }) {
  return svg(
    "g",
    { class: "lens-cell", "aria-label": `${labelOf(best)} ${formatShare(best.p, 4)}`, on: { click: choose } },
    svg("title", {}, `${labelOf(best)} ${formatShare(best.p, 4)}`),
    svg("rect", { x, y, width: LENS_CELL - 2, height: LENS_ROW - 2, class: "lens-box" }),
    svg("rect", { x, y: y + LENS_ROW - 6, width: Math.max(1, best.p * (LENS_CELL - 2)), height: 4, fill: rampColor(0.3 + 0.7 * best.p) }),
    svg("text", { x: x + 4, y: y + 18, class: "label" }, fitLabel(labelOf(best), LENS_CELL - 8)),
    isChosen ? svg("rect", { x, y, width: LENS_CELL - 2, height: LENS_ROW - 2, class: "chosen-cell" }) : null,
  );
}

function topFive(lens, layer, place) {
  return lens.top[layer][place].map((one) => [foreignText(labelOf(one)), " ", h("span", { class: "number" }, formatShare(one.p)), "  "]).flat();
}

function lensTable(trace) {
  const { lens } = trace.trace;
  if (!lens) return { columns: [t("walk.layer")], rows: [] };
  const tokens = trace.tokensOf(lens.stack);
  const rows = lens.top.map((row, layer) => [String(layer), ...row.map(([best]) => `${labelOf(best)} ${formatShare(best.p, 4)}`)]);
  return { columns: [t("walk.layer"), ...lens.positions.map((position) => labelOf(tokens[position]))], rows };
}
