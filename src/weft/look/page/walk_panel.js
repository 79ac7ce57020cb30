/**
 * One panel of Walk: a figure that follows the selection. A panel whose numbers have to be fetched
 * shows the last ones, dimmed, until they are there; an answer for an older selection is dropped.
 * @module walk_panel
 */

import { h, replaceContent } from "./dom.js";
import { createFigure } from "./figure.js";
import { t } from "./i18n.js";
import { errorState } from "./states.js";
import { termsLine } from "./terms.js";
import { MissingArray } from "./trace_reader.js";

const DIM_AFTER_MS = 150;
/** Terms of the glossary that a panel uses. */
const TERMS = {
  tokens: ["tokenizer"],
  position: ["RoPE"],
  projections: ["MHA, MQA, GQA", "MLA"],
  score: ["scaled dot-product attention"],
  residual: ["pre-norm, post-norm"],
  cross: ["cross-attention"],
  output: ["LM head"],
  kinds: ["sparse attention", "flash attention", "KV cache"],
};

/**
 * @typedef {Object} Walk  what all panels share
 * @property {import("./walk_trace.js").WalkTrace} trace
 * @property {() => import("./walk_trace.js").WalkSelection} selection
 * @property {(patch: Object) => void} select
 * @property {(sentence: string) => void} announce
 * @property {(text: string, target: string, ids: number[]) => void} rerun  ids: what the decoder reads
 * @property {(heads: Array<[string, number, number]>) => Promise<import("./walk_trace.js").WalkTrace>} ablate
 * @property {(side: string, token: number) => Promise<{neighbors: Object[]}>} neighbors  tokens with similar embeddings
 * @property {(positions: number[]) => Promise<{positions: number[], top: Object[][][]}>} lens  of a trace that has none
 * @property {boolean} hasServer
 */

/**
 * @typedef {Object} PanelSpec
 * @property {string} id
 * @property {boolean} [isOpen]
 * @property {() => string|null} [reason]   why it does not apply to this model
 * @property {(selection: import("./walk_trace.js").WalkSelection) => string} question
 * @property {Node[]} content               made once; `draw` changes it
 * @property {(selection: Object, isOpen: boolean) => Promise<string>|string} draw
 *   returns the line with the numbers; draws only if the panel is open
 * @property {() => (Element|null)} [picture]
 * @property {() => import("./figure.js").FigureTable} [table]
 * @property {() => Node[]} [maths]
 */

/** @param {Walk} walk @param {PanelSpec} spec */
export function createPanel(walk, spec) {
  const place = h("div", { class: "walk-place" });
  const figure = createFigure({
    id: spec.id,
    question: spec.question(walk.selection()),
    isOpen: spec.isOpen === true,
    picture: spec.picture,
    table: spec.table,
    maths: spec.maths ? [] : undefined,
    onToggle: () => update(),
  });
  figure.body.append(place);
  figure.body.append(...spec.content, termsLine(TERMS[spec.id]));
  const update = panelUpdate(walk, spec, figure, place);
  const open = () => {
    if (figure.isOpen()) return null;
    figure.setOpen(true);
    return update();
  };
  return { id: spec.id, element: figure.element, question: () => spec.question(walk.selection()), update, open, showTable: figure.showTable };
}

/** Draws what is chosen now, one selection after the other: an older one cannot be drawn later. */
function panelUpdate(walk, spec, figure, place) {
  let ticket = 0;
  let drawing = null;
  let shown = ""; // the selection that the line speaks of
  const drawOnce = async (mine) => {
    const selection = walk.selection();
    if (!figure.isOpen() && walk.trace.trace.limits.reduced) { // each number is a request
      if (shown !== JSON.stringify(selection)) figure.setLine();
      return;
    }
    const dim = setTimeout(() => figure.body.classList.add("is-dimmed"), DIM_AFTER_MS);
    try {
      const line = await spec.draw(selection, figure.isOpen());
      if (mine !== ticket) return;
      shown = JSON.stringify(selection);
      showResult(figure, spec, place, line);
    } catch (error) {
      if (mine === ticket) replaceContent(place, failureOf(error, update));
    } finally {
      clearTimeout(dim);
      if (mine === ticket) figure.body.classList.remove("is-dimmed");
    }
  };
  const drawLatest = async () => {
    for (let mine = 0; mine !== ticket; ) {
      mine = ticket;
      await drawOnce(mine);
    }
    drawing = null;
  };
  const update = () => {
    ticket += 1;
    figure.setQuestion(spec.question(walk.selection()));
    drawing ??= drawLatest();
    return drawing;
  };
  return update;
}

function showResult(figure, spec, place, line) {
  replaceContent(place);
  figure.setLine(line);
  if (spec.maths) figure.setMaths(...spec.maths());
  figure.refresh();
}

function failureOf(error, onRetry) {
  if (error instanceof MissingArray) return h("p", { class: "hint" }, t("walk.missing"));
  if (error.code === "trace_expired") return h("p", { class: "hint" }, t("walk.expired"));
  return errorState(error, onRetry);
}

/** A labeled control. @param {string} label @param {HTMLElement} control */
export function labeled(label, control) {
  return h("label", { class: "walk-control" }, h("span", {}, label), control);
}

/** A range with its value beside it. @param {{min: number, max: number, step: number, value: number}} range */
export function slider(label, range, onInput, format = String) {
  const output = h("output", { class: "number" }, format(range.value));
  const input = h("input", {
    type: "range", min: range.min, max: range.max, step: range.step, value: range.value, "aria-label": label,
    on: { input: () => { output.textContent = format(Number(input.value)); onInput(Number(input.value)); } },
  });
  const set = (value) => { input.value = value; output.textContent = format(Number(input.value)); };
  return { element: h("label", { class: "walk-control" }, h("span", {}, label), input, output), input, set };
}

/** A check box with a label. */
export function checkbox(label, isChecked, onChange) {
  const input = h("input", { type: "checkbox", checked: isChecked, on: { change: () => onChange(input.checked) } });
  return h("label", { class: "walk-control walk-check" }, input, h("span", {}, label));
}

/** A choice of few. @param {Array<[string, string]>} options value and label */
export function choice(label, options, value, onChange) {
  const items = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  const select = h("select", { on: { change: () => onChange(select.value) } }, items);
  return { element: labeled(label, select), select };
}
