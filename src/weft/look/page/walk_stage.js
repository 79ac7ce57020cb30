/**
 * One step of the model for one token, shown in the place of the map: attention as heads by keys,
 * feed-forward as its strongest units. It grows out of the cell that was chosen.
 * @module walk_stage
 */

import { barsSvg } from "./bars_svg.js";
import { h, replaceContent } from "./dom.js";
import { t } from "./i18n.js";
import { createMatrixView } from "./matrix_svg.js";
import { strongestUnits } from "./walk_steps.js";
import { labelOf } from "./walk_trace.js";
import { headLabel, looksSentence, signedText } from "./walk_words.js";
import { columnTitle } from "./walk_columns.js";

/** @param {import("./walk_panel.js").Walk} walk @param {() => void} onBack */
export function createStage(walk, onBack) {
  const title = h("h3", {});
  const body = h("div", {});
  const sentence = h("p", { class: "hint" });
  const back = h("button", { type: "button", class: "button", on: { click: onBack } }, t("walk.map.back"));
  const element = h("div", { class: "stage", hidden: true }, h("div", { class: "stage-head" }, back, title), sentence, body);
  const matrix = createMatrixView({ onChoose: (head, key) => walk.select({ head, key }) });
  let column = null;
  const update = async (selection) => {
    const token = labelOf(walk.trace.tokensOf(selection.part)[selection.token]);
    title.textContent = t("walk.map.stage", { token, what: columnTitle(column) });
    if (column.kind === "feedforward") await drawUnits(walk, column, selection, sentence, body);
    else await drawHeads(walk, matrix, selection, sentence, body);
  };
  return {
    element,
    update,
    isOpen: () => !element.hidden,
    open: (next, event) => {
      column = next;
      element.hidden = false;
      growFrom(element, event);
      back.focus({ preventScroll: true });
      update(walk.selection());
    },
    close: () => {
      element.hidden = true;
    },
  };
}

/** Start the zoom at the cell that was pressed. */
function growFrom(element, event) {
  const box = element.getBoundingClientRect();
  const x = event ? event.clientX - box.left : 0;
  const y = event ? Math.max(0, event.clientY - box.top) : 0;
  element.style.setProperty("transform-origin", `${x}px ${y}px`);
  element.classList.remove("grows");
  requestAnimationFrame(() => element.classList.add("grows"));
}

async function drawHeads(walk, matrix, selection, sentence, body) {
  const { trace } = walk;
  const { part, layer, head, token, key } = selection;
  const all = await trace.array(`${trace.prefixOf(part, layer)}.weights`, { row: token });
  const [heads, keys] = all.shape;
  const queries = trace.tokensOf(part);
  const row = all.data.subarray(head * keys, (head + 1) * keys);
  sentence.textContent = `${t("walk.sentence", { text: looksSentence(trace, selection, row) })} ${t("walk.map.heads", { token: labelOf(queries[token]) })}`;
  if (matrix.element.parentNode !== body) replaceContent(body, matrix.element);
  matrix.draw(
    {
      matrix: { values: all.data, rows: heads, columns: keys, scale: 1 },
      rowLabels: Array.from({ length: heads }, (_, i) => String(i)),
      columnLabels: trace.tokensOf(part, "key").map(labelOf),
      row: head,
      column: key,
      name: headLabel(selection),
    },
    body.clientWidth || 320,
  );
}

async function drawUnits(walk, column, selection, sentence, body) {
  const units = await strongestUnits(walk.trace, column.stack, column.layer, selection.token);
  sentence.textContent = units.line;
  const bars = units.top.map(({ unit, value }) => ({ label: String(unit), value, text: signedText(value) }));
  replaceContent(body, barsSvg(bars, { width: body.clientWidth || 320, isSigned: bars.some((bar) => bar.value < 0), name: units.line }));
}
