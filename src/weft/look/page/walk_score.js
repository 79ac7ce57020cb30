/**
 * Panels 5 and 6: queries, keys and values of the chosen token, and how one score of one head comes
 * about: products dimension by dimension, the scale, the mask and the softmax.
 * @module walk_score
 */

import { barsSvg, fitLabel } from "./bars_svg.js";
import { largestSize, signedColor } from "./color_ramp.js";
import { h, replaceContent, svg } from "./dom.js";
import { headersOf, t } from "./i18n.js";
import { formula, over, root, sub, sumOver, sup } from "./mathml.js";
import { formatCount, formatShare } from "./numbers.js";
import { softmax } from "./walk_math.js";
import { checkbox, createPanel } from "./walk_panel.js";
import { shapesOf } from "./walk_steps.js";
import { labelOf } from "./walk_trace.js";
import { signedText, strongestFew } from "./walk_words.js";

const SHOWN_PRODUCTS = 12;
const SHOWN_SCORES = 12;

/** Everything about one score. @returns {Promise<Object>} */
export async function scoreParts(trace, selection) {
  const { part, layer, head, token, key } = selection;
  const prefix = trace.prefixOf(part, layer);
  const kvHead = trace.kvHead(head);
  const [q, k, scores, weights, isAllowed] = await Promise.all([
    trace.array(`${prefix}.q`, { head, row: token }),
    trace.array(`${prefix}.k`, { head: kvHead, row: key }),
    trace.array(`${prefix}.scores`, { head, row: token }),
    trace.weightsRow(selection),
    trace.maskRow(selection),
  ]);
  const products = q.data.map((value, i) => value * k.data[i]);
  const sum = products.reduce((total, value) => total + value, 0);
  const bias = trace.has(`${prefix}.bias`) ? (await trace.array(`${prefix}.bias`, { head, row: token })).data[key] : 0;
  const scale = scaleOf(trace, q.data.length, sum, scores.data[key] - bias);
  return { q: q.data, k: k.data, products, sum, bias, scale, scores: scores.data, weights: weights.data, isAllowed };
}

/** 1/sqrt(d) where the score agrees with it, otherwise the factor that this model uses. */
function scaleOf(trace, size, sum, score) {
  const usual = 1 / Math.sqrt(size);
  const isUsual = Math.abs(sum * usual - score) <= 1e-4 * Math.max(1, Math.abs(score));
  return isUsual || Math.abs(sum) < 1e-6 ? usual : score / sum;
}

/** Panel 6. @param {import("./walk_panel.js").Walk} walk */
export function scorePanel(walk) {
  const { trace } = walk;
  const view = { parts: null, unscaled: false, selection: null };
  const products = h("div", {});
  const productNote = h("p", { class: "figure-note" });
  const rowNote = h("p", { class: "figure-note" });
  const scores = h("div", {});
  const saturation = h("p", { class: "hint", "aria-live": "polite" });
  const toggle = h("div", { class: "walk-controls" });
  const panel = createPanel(walk, {
    id: "score",
    isOpen: true,
    question: ({ part, token, key }) => t("walk.p6.title", { query: labelOf(trace.tokensOf(part)[token]), key: labelOf(trace.tokensOf(part, "key")[key]) }),
    content: [productNote, products, rowNote, scores, toggle, saturation],
    draw: async (selection, isOpen) => {
      const parts = await scoreParts(trace, selection);
      Object.assign(view, { parts, selection });
      if (isOpen) {
        const width = products.clientWidth || 320;
        drawProducts(view, { products, productNote, width });
        drawScores(walk, view, { scores, rowNote, width });
        drawToggle(view, toggle, saturation, () => panel.update());
      }
      return scoreLine(trace, parts, selection);
    },
    picture: () => [products, scores].map((one) => one.querySelector("svg")),
    table: () => scoreTable(trace, view),
    maths: () => scoreMaths(trace, view),
  });
  return panel;
}

function scoreLine(trace, parts, { part, key }) {
  if (!parts.isAllowed(key)) return t("walk.p6.masked", { key: labelOf(trace.tokensOf(part, "key")[key]) });
  return t("walk.p6.result", { weight: formatShare(parts.weights[key]), score: signedText(parts.scores[key]) });
}

function drawProducts({ parts }, { products, productNote, width }) {
  const shown = strongestFew(parts.products.map(Math.abs), SHOWN_PRODUCTS);
  const rest = parts.sum - shown.reduce((total, i) => total + parts.products[i], 0);
  const left = parts.products.length - shown.length;
  const bars = shown.map((i) => ({ label: `${i}: ${signedText(parts.q[i])} · ${signedText(parts.k[i])}`, value: parts.products[i], text: signedText(parts.products[i]) }));
  if (left > 0) bars.push({ label: t("walk.p6.rest", { n: left }), value: rest, text: signedText(rest) });
  productNote.textContent = t("walk.p6.products", { sum: signedText(parts.sum) });
  replaceContent(products, barsSvg(bars, { width, labelWidth: 136, isSigned: true, name: productNote.textContent }));
}

/** The weights of the row; the outline is the share that the score alone would be among the shown. */
function drawScores(walk, { parts, selection, unscaled }, { scores, rowNote, width }) {
  const keys = walk.trace.tokensOf(selection.part, "key");
  const weights = unscaled ? unscaledWeights(parts) : parts.weights;
  const shown = strongestFew(weights, SHOWN_SCORES);
  if (!shown.includes(selection.key)) shown.push(selection.key);
  const allowed = (key) => parts.isAllowed(key);
  const bars = shown.map((key) => ({
    label: labelOf(keys[key]),
    value: weights[key],
    text: allowed(key) ? `${signedText(unscaled ? parts.scores[key] / parts.scale : parts.scores[key])} → ${formatShare(weights[key])}` : "−∞ → 0",
    isStruck: !allowed(key),
    isChosen: key === selection.key,
  }));
  rowNote.textContent = t("walk.p6.rows", { query: labelOf(walk.trace.tokensOf(selection.part)[selection.token]) });
  replaceContent(scores, barsSvg(bars, { width, labelWidth: 96, scale: 1, name: rowNote.textContent, id: "score", choose: (row) => walk.select({ key: shown[row] }) }));
}

/** Softmax of the scores without their scale. */
function unscaledWeights(parts) {
  return softmax(Array.from(parts.scores, (score, key) => (parts.isAllowed(key) ? score / parts.scale : -Infinity)));
}

function drawToggle(view, toggle, saturation, update) {
  if (!toggle.children.length || toggle.dataset.scale !== view.parts.scale.toFixed(4)) {
    toggle.dataset.scale = view.parts.scale.toFixed(4);
    const change = (isOn) => { view.unscaled = isOn; update(); };
    replaceContent(toggle, checkbox(t("walk.p6.unscaled", { scale: toggle.dataset.scale }), view.unscaled, change));
  }
  const values = { without: formatShare(Math.max(...unscaledWeights(view.parts))), with: formatShare(Math.max(...view.parts.weights)) };
  saturation.textContent = view.unscaled ? t("walk.p6.saturated", values) : "";
}

function scoreTable(trace, { parts, selection }) {
  const keys = trace.tokensOf(selection.part, "key");
  const rows = keys.map((key, i) => [labelOf(key), signedText(parts.scores[i], 4), parts.isAllowed(i) ? "1" : "0", formatShare(parts.weights[i], 4)]);
  return { columns: headersOf("walk.p6.columns"), rows };
}

function scoreMaths(trace, { parts, selection }) {
  const bias = parts.bias ? ["+", signedText(parts.bias, 4)] : [];
  return [
    formula(sub("s", "qk"), "=", over([sumOver("i"), sub("q", "i"), sub("k", "i")], root(sub("d", "k"))), "=", signedText(parts.sum, 4), "×", parts.scale.toFixed(4), ...bias, "=", signedText(parts.scores[selection.key], 4)),
    formula(sub("a", "qk"), "=", over(sup("e", sub("s", "qk")), [sumOver("j"), sup("e", sub("s", "qj"))]), "=", parts.weights[selection.key].toFixed(4)),
    h("p", { class: "mono" }, shapesOf(trace, trace.prefixOf(selection.part, selection.layer), ["q", "k", "scores", "mask", "weights"])),
  ];
}

/** Panel 5. @param {import("./walk_panel.js").Walk} walk */
export function projectionsPanel(walk) {
  const { trace } = walk;
  const box = h("div", {});
  const note = h("p", { class: "hint" });
  let strips = [];
  return createPanel(walk, {
    id: "projections",
    question: ({ part, token }) => t("walk.p5.title", { token: labelOf(trace.tokensOf(part)[token]) }),
    content: [box, note],
    draw: async (selection, isOpen) => {
      if (isOpen) {
        strips = await projectionStrips(trace, selection);
        replaceContent(box, stripsPicture(strips, selection, box.clientWidth || 320));
        note.textContent = trace.model.kv_heads < trace.model.heads ? t("walk.p5.shared") : "";
      }
      return projectionsLine(trace, selection);
    },
    picture: () => box.querySelector("svg"),
    table: () => ({ columns: ["", ...Array.from({ length: 16 }, (_, i) => String(i))], rows: strips.map((one) => [one.name, ...Array.from(one.values.slice(0, 16), (value) => signedText(value, 4))]) }),
    maths: () => [formula("Q", "=", "X", sup("W", "Q"), ",", "K", "=", "X", sup("W", "K"), ",", "V", "=", "X", sup("W", "V")), h("p", { class: "mono" }, shapesOf(trace, trace.prefixOf(walk.selection().part, walk.selection().layer), ["q", "k", "v", "c_kv", "k_rope"]))],
  });
}

function projectionsLine(trace, { part, layer }) {
  const prefix = trace.prefixOf(part, layer);
  const [heads, , size] = trace.stages.get(`${prefix}.q`).shape;
  const [kv] = trace.stages.get(`${prefix}.k`).shape;
  const line = t("walk.p5.result", { heads, kv, size });
  if (!trace.has(`${prefix}.c_kv`)) return line;
  const latent = trace.stages.get(`${prefix}.c_kv`).shape.at(-1);
  const rope = trace.stages.get(`${prefix}.k_rope`)?.shape.at(-1) ?? 0;
  return `${line} ${t("walk.p5.mla", { latent, rope, heads, bytes: formatCount(4 * (latent + rope)) })}`;
}

/** One row of numbers per head: q, then k and v of the heads they are shared by. */
async function projectionStrips(trace, { part, layer, token, key }) {
  const prefix = trace.prefixOf(part, layer);
  const row = (name) => (part === "cross" && name !== "q" ? key : token);
  const names = ["q", "k", "v", "c_kv", "k_rope"].filter((name) => trace.has(`${prefix}.${name}`));
  const arrays = await Promise.all(names.map((name) => trace.array(`${prefix}.${name}`, { row: row(name) })));
  return names.flatMap((name, i) => rowsOf(name, arrays[i]));
}

function rowsOf(name, { data, shape }) {
  const size = shape.at(-1);
  return Array.from({ length: data.length / size }, (_, head) => ({
    kind: name,
    head,
    name: shape.length > 1 ? `${name} ${head}` : name,
    values: data.subarray(head * size, (head + 1) * size),
  }));
}

/** Strips of colored cells, the first 16 numbers of each; brackets join heads that share a key. */
function stripsPicture(strips, selection, width) {
  const [row, left] = [20, 56];
  const cell = Math.min(24, (width - left - 8) / 16);
  const scale = largestSize(strips.flatMap((one) => [...one.values.slice(0, 16)]));
  let y = 0;
  let last = "";
  const group = strips.map((one) => {
    if (last && one.kind !== last) y += 12;
    last = one.kind;
    const top = y;
    y += row;
    const cells = Array.from(one.values.slice(0, 16), (value, i) =>
      svg("rect", { x: left + i * cell, y: top + 1, width: cell - 1, height: row - 2, fill: signedColor(value, scale) }, svg("title", {}, signedText(value, 4))),
    );
    const isChosen = one.kind === "q" && one.head === selection.head;
    return svg("g", {}, svg("text", { x: left - 8, y: top + 14, "text-anchor": "end", class: isChosen ? "label chosen" : "label" }, fitLabel(one.name, left)), cells);
  });
  return svg("svg", { width, height: y + 2, role: "img", "aria-label": `Q, K, V, ±${scale.toFixed(2)}` }, group);
}
