/**
 * Sentences that several panels of Walk share.
 * @module walk_words
 */

import { getLanguage, t } from "./i18n.js";
import { formatShare, formatSigned } from "./numbers.js";
import { labelOf } from "./walk_trace.js";

/** "layer 2 head 3", with the part if it is cross-attention. */
export function headLabel({ part, layer, head }) {
  const name = t("walk.headName", { layer, head });
  return part === "cross" ? `${t("walk.part.cross")}, ${name}` : name;
}

/** "它 looks most at 苹果: 0.62, layer 2 head 3". */
export function looksSentence(trace, selection, weights, digits = 2) {
  const best = strongestOf(weights);
  const query = labelOf(trace.tokensOf(selection.part)[selection.token]);
  const key = labelOf(trace.tokensOf(selection.part, "key")[best]);
  return t("walk.looks", { query, key, weight: formatShare(weights[best], digits), head: headLabel(selection) });
}

/** Index of the largest number. @param {ArrayLike<number>} values */
export function strongestOf(values) {
  let best = 0;
  for (let i = 1; i < values.length; i += 1) if (values[i] > values[best]) best = i;
  return best;
}

/** Indices of the largest numbers, best first. @param {ArrayLike<number>} values */
export function strongestFew(values, count) {
  const order = Array.from(values, (_, i) => i);
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** A list in the language of the page. @param {string[]} items */
export function joinedList(items) {
  return items.join(getLanguage() === "zh" ? "、" : ", ");
}

export function signedText(value, digits = 2) {
  return Number.isFinite(value) ? formatSigned(value, digits) : "−∞";
}
