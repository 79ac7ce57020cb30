/**
 * Panel 12: from logits to the next token. The settings of the sampler are applied here, to the
 * logits of the trace: nothing is run again, except to continue from another token.
 * @module walk_output
 */

import { barsSvg, fitLabel } from "./bars_svg.js";
import { rampColor } from "./color_ramp.js";
import { debounced, h, replaceContent, svg } from "./dom.js";
import { headersOf, t } from "./i18n.js";
import { formula, over, sub, sumOver, sup } from "./mathml.js";
import { formatCount, formatShare } from "./numbers.js";
import { bytesOf, lossyText } from "./tokens.js";
import { applySampling, drawFrom, sortedIds, softmax, uniformOf } from "./walk_math.js";
import { createPanel, slider } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";
import { signedText } from "./walk_words.js";

const SHOWN_TOKENS = 20;

/** The token of the decoder whose successor is shown. */
export function outputToken(trace, selection) {
  const isQuery = trace.sideOf(selection.part) === trace.sideOf(trace.headStack);
  return isQuery ? selection.token : 0;
}

/** The exact logits of one position. */
export async function logitsOf(trace, token) {
  const name = `${trace.headStack}.logits`;
  const last = trace.inline(`${name}[-1]`);
  const rows = trace.stages.get(name).shape[0];
  if (last && token === rows - 1) return last.data;
  return (await trace.array(name, { row: token })).data;
}

/** How probable the chosen token was after those before it; null for one that was not predicted. */
export async function tokenProbability(trace, { part, token }) {
  const stack = trace.headStack;
  if (!stack || trace.model.kind === "encoder" || token === 0 || trace.sideOf(part) !== trace.sideOf(stack)) return null;
  const { id } = trace.tokensOf(part)[token];
  const known = trace.trace.candidates[stack]?.[token - 1]?.find((one) => one.id === id);
  if (known || !trace.readArray) return known?.p ?? null;
  return softmax(await logitsOf(trace, token - 1))[id];
}

/** Panel 12. @param {import("./walk_panel.js").Walk} walk */
export function outputPanel(walk) {
  const { trace } = walk;
  const settings = { temperature: 1, topK: 0, topP: 1, minP: 0, seed: 0 };
  const view = { token: 0, logits: null, order: null, plain: null, sampling: null, settings };
  const bars = h("div", {});
  const cumulative = h("div", {});
  const drawn = h("p", { class: "readout", "aria-live": "polite" });
  const redraw = debounced(() => showSampling(walk, view, { bars, cumulative, drawn }), 0);
  return createPanel(walk, {
    id: "output",
    isOpen: true,
    question: (selection) => t("walk.p12.title", { token: labelOf(trace.tokensOf(trace.headStack)[outputToken(trace, selection)]) }),
    content: [samplingControls(settings, redraw), bars, cumulative, drawn],
    draw: async (selection, isOpen) => {
      const token = outputToken(trace, selection);
      const logits = await logitsOf(trace, token);
      if (logits !== view.logits) Object.assign(view, { logits, order: sortedIds(logits), plain: softmax(logits) });
      view.token = token;
      view.sampling = applySampling(view.logits, view.order, settings);
      if (isOpen) showSampling(walk, view, { bars, cumulative, drawn });
      return outputLine(trace, view);
    },
    picture: () => bars.querySelector("svg"),
    table: () => outputTable(trace, view),
    maths: () => [formula(sub("p", "i"), "=", over(sup("e", over(sub("l", "i"), "T")), [sumOver("j"), sup("e", over(sub("l", "j"), "T"))])), h("p", { class: "mono" }, `x [${trace.model.width}] W_vocab → l [${trace.model.vocab}]`)],
  });
}

function samplingControls(settings, redraw) {
  const add = (key, name, range, format) => slider(t(`walk.p12.${name}`), { ...range, value: settings[key] }, (value) => { settings[key] = value; redraw(); }, format).element;
  return h(
    "div",
    { class: "walk-controls" },
    add("temperature", "temperature", { min: 0, max: 2, step: 0.05 }, formatShare),
    add("topK", "topK", { min: 0, max: 50, step: 1 }),
    add("topP", "topP", { min: 0.05, max: 1, step: 0.05 }, formatShare),
    add("minP", "minP", { min: 0, max: 0.5, step: 0.01 }, formatShare),
    add("seed", "seed", { min: 0, max: 99, step: 1 }),
  );
}

/** Text of a token id: known for the most likely tokens, which the trace names. */
export function nameOfId(trace, token, id) {
  const known = trace.trace.candidates[trace.headStack]?.[token]?.find((one) => one.id === id);
  return known ? labelOf(known) : `#${id}`;
}

function showSampling(walk, view, { bars, cumulative, drawn }) {
  view.sampling = applySampling(view.logits, view.order, view.settings);
  const { order, probabilities, kept } = view.sampling;
  const width = bars.clientWidth || 320;
  const name = (id) => nameOfId(walk.trace, view.token, id);
  const u = uniformOf(view.settings.seed, view.token + 1); // the place of the token that is drawn
  const chosen = view.settings.temperature === 0 ? order[0] : drawFrom(probabilities, u);
  const rows = Array.from(order.subarray(0, SHOWN_TOKENS), (id, place) => ({
    label: name(id),
    value: probabilities[id],
    ghost: view.plain[id],
    text: `${signedText(view.logits[id])} → ${formatShare(probabilities[id])}`,
    isStruck: place >= kept,
    isChosen: id === chosen,
  }));
  const choose = (row) => continueFrom(walk, view, order[row]);
  replaceContent(bars, barsSvg(rows, { width, labelWidth: 120, scale: 1, cut: kept, name: outputLine(walk.trace, view), id: "output", choose }));
  replaceContent(cumulative, cumulativePicture(view, u, width, name));
  drawn.textContent = t("walk.p12.draw", { u: formatShare(u, 4), token: name(chosen) });
}

/** The probabilities side by side, in order of ids as the sampler adds them, and u among them. */
function cumulativePicture(view, u, width, name) {
  const { probabilities } = view.sampling;
  const parts = [];
  let mass = 0;
  probabilities.forEach((p, id) => {
    if (p * width >= 0.5) parts.push({ id, x: mass * width, width: p * width });
    mass += p;
  });
  const shown = parts.slice(0, 400).map((part) =>
    svg(
      "g",
      {},
      svg("rect", { x: part.x, y: 8, width: Math.max(0.5, part.width - 1), height: 16, fill: rampColor(0.15 + 0.5 * (part.width / width)) }),
      part.width > 40 ? svg("text", { x: part.x + 4, y: 20, class: "label on-mark" }, fitLabel(name(part.id), part.width - 8)) : null,
    ),
  );
  const mark = svg("path", { d: `M${u * width},2 V30`, class: "draw" });
  return svg("svg", { width, height: 32, role: "img", "aria-label": `u = ${formatShare(u, 4)}` }, shown, mark);
}

function outputLine(trace, { token, sampling, logits, plain }) {
  const best = sampling.order[0];
  const values = { next: nameOfId(trace, token, best), p: formatShare(plain[best]), kept: formatCount(sampling.kept), vocab: formatCount(logits.length) };
  return t("walk.p12.result", values);
}

function outputTable(trace, { token, sampling, logits, plain }) {
  const ids = Array.from(sampling.order.subarray(0, SHOWN_TOKENS));
  const rows = ids.map((id, place) => [nameOfId(trace, token, id), String(id), signedText(logits[id], 4), plain[id].toFixed(4), place < sampling.kept ? sampling.probabilities[id].toFixed(4) : "0"]);
  return { columns: headersOf("walk.p12.columns"), rows };
}

/** Run the text again, with another token chosen at this place. */
function continueFrom(walk, view, id) {
  const { trace } = walk;
  const piece = trace.trace.candidates[trace.headStack]?.[view.token]?.find((one) => one.id === id);
  if (!piece || !walk.hasServer || piece.bytes === "") return;
  const read = [...trace.tokensOf(trace.headStack).slice(0, view.token + 1), piece];
  const bytes = read.filter((one) => !one.is_special).flatMap((one) => bytesOf(one) ?? []);
  const text = lossyText(bytes).replaceAll("\ufffd", ""); // to be read; what is run are the ids
  const ids = read.map((one) => one.id);
  if (trace.isTranslator) walk.rerun(walk.trace.trace.text, text, ids);
  else walk.rerun(text, "", ids);
}
