/**
 * The inspector: everything about the one thing that is selected. Beside the main column on wide
 * screens, below it on smaller ones, a sheet at the bottom of narrow ones.
 * @module inspector
 */

import { foreignText, h, replaceContent } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./i18n.js";
import { formatShare } from "./numbers.js";
import { csvText, downloadBlob } from "./save.js";
import { pieceLabel } from "./tokens.js";

/**
 * @typedef {Object} Selection
 * @property {string} title     what is selected: "Token 3", "Layer 2, head 3"
 * @property {string} [piece]   its text, large and monospaced
 * @property {Array<[string, import("./dom.js").Child]>} [facts]  name and value
 * @property {Array<{text: string, bytes?: number[]|string|null, p: number, chosen?: boolean}>} [top]  candidates
 * @property {string} [sentence]  what is also read aloud
 * @property {import("./dom.js").Child} [actions]  buttons, such as Save
 */

/**
 * @typedef {Object} Inspector
 * @property {HTMLElement} element
 * @property {(selection: Selection|null) => void} show  null: nothing is selected
 * @property {(label: string) => void} setLabel  of the sheet while nothing is selected
 * @property {(...sections: import("./dom.js").Child[]) => void} setSections  what a view adds below the selection
 */

/** @param {(sentence: string) => void} announce reads a sentence aloud @returns {Inspector} */
export function createInspector(announce) {
  const selected = h("div", { class: "inspector-selection" });
  const sections = h("div", { class: "inspector-sections" });
  let label = t("inspector.title");
  const button = h("button", { type: "button", class: "sheet-handle", "aria-expanded": "false" }, t("inspector.title"));
  const element = h("aside", { class: "inspector", "aria-label": t("inspector.title") }, button, selected, sections);
  button.addEventListener("click", () => {
    const isOpen = element.classList.toggle("is-open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  const show = (selection) => {
    element.classList.toggle("has-selection", selection !== null);
    replaceContent(selected, selection === null ? null : selectionContent(selection));
    replaceContent(button, selection === null ? label : [selection.title, selection.piece ? [" \u00b7 ", foreignText(selection.piece)] : null]);
    if (selection?.sentence) announce(selection.sentence);
  };
  show(null);
  const setLabel = (text) => {
    label = text;
    if (!element.classList.contains("has-selection")) replaceContent(button, label);
  };
  return { element, show, setLabel, setSections: (...children) => replaceContent(sections, ...children) };
}

function selectionContent(selection) {
  return [
    h("h2", { class: "inspector-title" }, selection.title),
    selection.piece ? foreignText(selection.piece, "p", { class: "inspector-piece" }) : null,
    selection.sentence ? h("p", { class: "inspector-sentence" }, selection.sentence) : null,
    selection.facts?.length ? factList(selection.facts) : null,
    selection.top?.length ? candidateList(selection.top) : null,
    h("div", { class: "button-row" }, selection.actions, selection.facts?.length ? saveButton(selection) : null),
  ];
}

/** The numbers of the selection as a file. */
function saveButton({ title, piece, facts, top = [] }) {
  const rows = () => [
    [title, piece ?? ""],
    ...facts.map(([name, value]) => [name, value instanceof Node ? value.textContent : String(value)]),
    ...top.map((one) => [pieceLabel(one), one.p]),
  ];
  const save = () => downloadBlob(new Blob(["\ufeff", csvText(rows())], { type: "text/csv" }), "selection.csv");
  return h("button", { type: "button", class: "button", on: { click: save } }, icon("save"), t("figure.save"));
}

/** Names and values. @param {Array<[string, import("./dom.js").Child]>} facts */
export function factList(facts) {
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Candidates with bars; the chosen one is marked by a word. @param {Selection["top"]} top @param {number} [digits] */
export function candidateList(top, digits = 4) {
  const rows = top.map((one) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(one.p));
    return h(
      "li",
      { class: one.chosen ? "candidate is-chosen" : "candidate" },
      foreignText(pieceLabel(one), "span", { class: "candidate-text" }),
      bar,
      h("span", { class: "number" }, formatShare(one.p, digits)),
      one.chosen ? h("span", { class: "visually-hidden" }, t("inspector.chosen")) : null,
    );
  });
  return h("ol", { class: "candidates", "aria-label": t("inspector.candidates") }, rows);
}
