/**
 * Names of what the cache holds: who holds a page, the text of a node.
 * @module cache_names
 */

import { h, foreignText } from "./dom.js";
import { t } from "./i18n.js";
import { decodedText, bytesOf, pieceLabel, visibleText } from "./tokens.js";

export const NUM_HUES = 6;
const HOLDERS = ["prefix", "sources"];

/** The request of an owner such as "a/0"; null for the caches. @param {string} owner */
export function requestOf(owner) {
  return HOLDERS.includes(owner) ? null : owner.split("/")[0];
}

/** Which of the six hues a request has; the letter tells those with the same one apart. @param {string} name */
export function hueOf(name) {
  let number = 0;
  for (const letter of name) number = number * 26 + letter.charCodeAt(0) - 96;
  return (((number - 1) % NUM_HUES) + NUM_HUES) % NUM_HUES;
}

/** The requests that hold a page, in order. @param {import("./cache_state.js").CachePage} page @returns {string[]} */
export function requestsOf(page) {
  return [...new Set([...page.owners.keys()].map(requestOf).filter((name) => name !== null))].sort();
}

/** "request a, sample 0" or the name of a cache. @param {string} owner */
export function ownerName(owner) {
  if (HOLDERS.includes(owner)) return t(`cache.owner.${owner}`);
  const [request, sample] = owner.split("/");
  return t("cache.owner.request", { request, sample: sample ?? 0 });
}

/** The text of some tokens, with visible line ends; bytes that are no characters in hex.
 * @param {number[]} ids @param {Object<string, import("./tokens.js").Piece>} texts */
export function tokensText(ids, texts) {
  const pieces = ids.map((id) => texts[id] ?? { text: `#${id}` });
  const bytes = pieces.map(bytesOf);
  const whole = bytes.every((one) => one !== null) ? decodedText(bytes.flat()) : null;
  return whole === null ? pieces.map(pieceLabel).join(" ") : visibleText(whole);
}

/** The text of a node, or how many tokens another caller has there.
 * @param {import("./cache_state.js").CacheNode} node @param {Object<string, any>} texts */
export function nodeText(node, texts) {
  if (node.tokens === null) return t("cache.foreign", { n: node.numTokens });
  if (!node.numTokens) return t("cache.root");
  return tokensText(node.tokens, texts);
}

/** A letter in the color of its request. @param {string} name */
export function requestBadge(name) {
  return h("span", { class: `request-badge request-${hueOf(name)}` }, foreignText(name));
}
