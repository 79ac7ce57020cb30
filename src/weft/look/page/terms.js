/**
 * Terms with a dotted underline that open their line of docs/glossary.md.
 * @module terms
 */

import { h, uniqueId } from "./dom.js";
import { hasText, t } from "./i18n.js";

/** A term inside a text. @param {string} words as written @param {string} term as in the glossary */
export function termButton(words, term) {
  const key = `term.${term}`;
  if (!hasText(key)) return words;
  const id = uniqueId("term");
  const note = h("span", { id, popover: "auto", class: "term-note", role: "note" }, h("strong", {}, term), " ", t(key));
  const button = h("button", { type: "button", class: "term", popovertarget: id, "aria-describedby": id }, words);
  button.addEventListener("click", () => {
    const box = button.getBoundingClientRect();
    note.style.setProperty("left", `${Math.max(8, Math.min(box.left, innerWidth - note.offsetWidth - 8))}px`);
    note.style.setProperty("top", `${box.bottom + 4}px`);
  });
  return h("span", {}, button, note);
}

/** A line of terms, each with its line of the glossary; empty without terms. @param {string[]} [terms] */
export function termsLine(terms = []) {
  const buttons = terms.flatMap((term, place) => [place ? " · " : "", termButton(term, term)]);
  return h("p", { class: "hint", hidden: !terms.length }, t("terms"), " ", buttons);
}
