/**
 * Panel 15: the same queries, keys and values through another mask; attention tile by tile with the
 * running maximum and sum of flash attention; and the cache of this model beside other designs.
 * @module walk_kinds
 */

import { barsSvg } from "./bars_svg.js";
import { readPalette } from "./color_ramp.js";
import { h, replaceContent } from "./dom.js";
import { paintMatrix } from "./heatmap_canvas.js";
import { t } from "./i18n.js";
import { formula, subsup, sup, sub } from "./mathml.js";
import { formatCount, formatShare } from "./numbers.js";
import { onlineSoftmax, patternAllows, softmax, weightedSum } from "./walk_math.js";
import { choice, createPanel, slider } from "./walk_panel.js";
import { scoreParts } from "./walk_score.js";
import { lengthOf } from "./walk_steps.js";
import { labelOf } from "./walk_trace.js";
import { signedText } from "./walk_words.js";

const BYTES = 4;
const LARGE_MODEL = { heads: 32, size: 128, kvHeads: 8, latent: 512 + 64 };
const MASK_PIXELS = 160;
const MASK_TOKENS = 160;

/** Panel 15. @param {import("./walk_panel.js").Walk} walk */
export function kindsPanel(walk) {
  const { trace } = walk;
  const view = { pattern: "full", size: 4, tile: 4, steps: 1, row: null };
  const parts = { mask: h("canvas", { class: "mask-picture", role: "img" }), change: h("p", {}), flash: h("p", { "aria-live": "polite" }), memory: h("div", {}) };
  const update = () => { if (view.row) showKinds(walk, view, parts); };
  const set = (key) => (value) => { view[key] = value; update(); };
  const patterns = ["full", "window", "strided"].map((name) => [name, t(`walk.p15.${name}`)]);
  const controls = [
    choice(t("walk.p15.pattern"), patterns, "full", set("pattern")).element,
    slider(t("walk.p15.size"), { min: 1, max: 32, step: 1, value: view.size }, set("size")).element,
  ];
  const tiles = [
    slider(t("walk.p15.tile"), { min: 1, max: 32, step: 1, value: view.tile }, set("tile")).element,
    slider(t("walk.p15.step"), { min: 1, max: 32, step: 1, value: view.steps }, set("steps")).element,
  ];
  return createPanel(walk, {
    id: "kinds",
    question: () => t("walk.p15.title"),
    content: [h("div", { class: "walk-controls" }, controls), parts.mask, parts.change, h("div", { class: "walk-controls" }, tiles), parts.flash, parts.memory],
    draw: async (selection, isOpen) => {
      if (isOpen) {
        view.row = await rowWithValues(trace, selection);
        view.selection = selection;
        showKinds(walk, view, parts);
      }
      return t("walk.p15.result", { bytes: formatCount(cacheBytes(trace)[0].value), kind: trace.model.attention });
    },
    picture: () => [parts.mask, ...parts.memory.querySelectorAll("svg")],
    table: () => ({ columns: ["", t("walk.p15.memory")], rows: [...cacheBytes(trace), ...largeCacheBytes()].map((one) => [one.label, formatCount(one.value)]) }),
    maths: () => [formula(sup("m", "′"), "=", "max", "(", "m", ",", sub("s", "j"), ")", ",", sup("l", "′"), "=", "l", sup("e", ["m", "−", sup("m", "′")]), "+", sup("e", [sub("s", "j"), "−", sup("m", "′")])), h("p", {}, formula("O", "=", subsup("Σ", "j", ""), sub("a", "j"), sub("v", "j")))],
  });
}

async function rowWithValues(trace, selection) {
  const { part, layer, head } = selection;
  const parts = await scoreParts(trace, selection);
  const values = await trace.array(`${trace.prefixOf(part, layer)}.v`, { head: trace.kvHead(head) });
  return { ...parts, values };
}

function showKinds(walk, view, parts) {
  const { row, selection } = view;
  const token = labelOf(walk.trace.tokensOf(selection.part)[selection.token]);
  const allowed = (query, key) => row.isAllowed(key) && patternAllows(view.pattern, view.size, query, key);
  const scores = Array.from(row.scores, (score, key) => (allowed(selection.token, key) ? score : -Infinity));
  const usual = Array.from(row.scores, (score, key) => (row.isAllowed(key) ? score : -Infinity));
  const [output, full] = [scores, usual].map((one) => weightedSum(softmax(one), row.values));
  const change = lengthOf(output.map((value, i) => value - full[i])) / lengthOf(full);
  const count = scores.filter(Number.isFinite).length;
  parts.change.textContent = t("walk.p15.change", { token, n: formatCount(count), change: formatShare(change, 4) });
  showMask(walk, view, parts.mask);
  const steps = Math.ceil(scores.length / view.tile);
  const tiled = onlineSoftmax(scores, row.values, view.tile, Math.min(view.steps, steps));
  const error = lengthOf(tiled.output.map((value, i) => value - output[i])) / lengthOf(output);
  const numbers = { max: signedText(tiled.max), sum: signedText(tiled.sum), error: error >= 0.01 ? formatShare(error) : error.toExponential(1) };
  parts.flash.textContent = t("walk.p15.flash", { n: Math.min(view.steps, steps), all: steps, ...numbers });
  replaceContent(parts.memory, memoryBars(walk.trace, parts.memory.clientWidth || 320));
}

/** Which key each query may read, for at most the first 160 tokens. */
function showMask(walk, { pattern, size, selection }, canvas) {
  const { trace } = walk;
  const [rows, columns] = ["query", "key"].map((axis) => Math.min(MASK_TOKENS, trace.tokensOf(selection.part, axis).length));
  const isCausal = selection.part === "decoder";
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < values.length; i += 1) {
    const [query, key] = [Math.floor(i / columns), i % columns];
    const isIn = patternAllows(pattern, size, query, key) && !(isCausal && key > query);
    values[i] = isIn ? 0.5 : NaN;
  }
  canvas.setAttribute("aria-label", t(`walk.p15.${pattern}`));
  paintMatrix(canvas, { values, rows, columns, scale: 1 }, readPalette(), MASK_PIXELS);
}

/** Bytes of the cache per token and layer: of this model, and of other designs of its size. */
function cacheBytes(trace) {
  const { heads, kv_heads: kvHeads, head_size: size, attention } = trace.model;
  const [stack] = Object.keys(trace.parts);
  const prefix = trace.prefixOf(stack, 0);
  const latent = trace.stages.get(`${prefix}.c_kv`)?.shape.at(-1);
  const rope = trace.stages.get(`${prefix}.k_rope`)?.shape.at(-1) ?? 0;
  const own = latent ? latent + rope : 2 * kvHeads * size;
  const rows = [
    [`${attention.toUpperCase()} (${trace.model.name})`, own],
    ["MHA", 2 * heads * size],
    ["GQA, 2", (2 * heads * size) / 2],
    ["MQA", 2 * size],
  ];
  return rows.map(([label, numbers]) => ({ label, value: numbers * BYTES, text: formatCount(numbers * BYTES) }));
}

/** The same of a model of about 7 billion parameters; GQA as in Llama 3, MLA as in DeepSeek-V2. */
function largeCacheBytes() {
  const { heads, size, kvHeads, latent } = LARGE_MODEL;
  const rows = [["MHA", 2 * heads * size], [`GQA, ${kvHeads}`, 2 * kvHeads * size], ["MQA", 2 * size], ["MLA", latent]];
  return rows.map(([label, numbers]) => ({ label, value: numbers * BYTES, text: formatCount(numbers * BYTES) }));
}

/** Bytes of this model, and of a large one. */
function memoryBars(trace, width) {
  const own = cacheBytes(trace).map((one, i) => ({ ...one, isChosen: i === 0 }));
  const picture = (rows, name) => [h("p", { class: "figure-note" }, name), barsSvg(rows, { width: Math.min(width, 520), labelWidth: 136, name })];
  return [...picture(own, t("walk.p15.memory")), ...picture(largeCacheBytes(), t("walk.p15.large", LARGE_MODEL))];
}
