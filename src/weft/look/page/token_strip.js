/**
 * The tokens of the text under the header: the selection of the whole page. One of them can be
 * reached with Tab, the others with arrows, Home and End.
 * @module token_strip
 */

import { h, languageOf, replaceContent } from "./dom.js";
import { t } from "./i18n.js";
import { pieceLabel } from "./tokens.js";

/** @typedef {{i: number, id: number, text: string, bytes?: number[]|string|null, word?: number|null}} StripToken */

/**
 * @typedef {Object} TokenStrip
 * @property {HTMLElement} element
 * @property {(tokens: StripToken[], stack?: string) => void} setTokens  an empty list hides the strip
 * @property {() => void} update  after the store has changed
 */

/** @param {import("./state.js").Store} store @returns {TokenStrip} */
export function createTokenStrip(store) {
  const list = h("div", { class: "strip-tokens", role: "listbox", "aria-orientation": "horizontal", "aria-label": t("strip.label") });
  const element = h("section", { class: "strip", hidden: true, "aria-label": t("strip.label") }, list);
  let tokens = [];
  let stack = "";
  const select = (index, hasFocus) => {
    if (!tokens.length) return;
    const place = Math.max(0, Math.min(tokens.length - 1, index));
    store.set({ token: tokens[place].i, ...(stack ? { stack } : {}) });
    update();
    if (hasFocus) list.children[place].focus();
  };
  const update = () => {
    const chosen = selectedPlace(tokens, store.get().token);
    [...list.children].forEach((chip, place) => {
      chip.setAttribute("aria-selected", String(place === chosen));
      chip.tabIndex = place === Math.max(0, chosen) ? 0 : -1;
    });
    if (chosen >= 0) list.children[chosen].scrollIntoView?.({ block: "nearest", inline: "nearest" });
  };
  list.addEventListener("click", (event) => {
    const chip = event.target.closest("[role=option]");
    if (chip) select([...list.children].indexOf(chip), true);
  });
  list.addEventListener("keydown", (event) => {
    const place = [...list.children].indexOf(document.activeElement);
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: tokens.length - 1 };
    if (!(event.key in moves) || place < 0) return;
    event.preventDefault();
    select(moves[event.key], true);
  });
  const setTokens = (next, ofStack = "") => {
    tokens = next;
    stack = ofStack;
    element.hidden = !tokens.length;
    replaceContent(list, tokens.map(stripChip));
    update();
  };
  return { element, setTokens, update };
}

function selectedPlace(tokens, index) {
  return tokens.findIndex((one) => one.i === index);
}

function stripChip(token) {
  const label = pieceLabel(token);
  const attributes = { class: "strip-token", role: "option", lang: languageOf(label), title: t("strip.token", { i: token.i, id: token.id }) };
  return h("span", attributes, h("bdi", {}, label));
}
