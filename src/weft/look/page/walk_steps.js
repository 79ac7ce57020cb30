/**
 * Panels 9 and 10: what the residual path adds at each step, and the hidden units of a feed-forward
 * layer that respond to the chosen token.
 * @module walk_steps
 */

import { barsSvg } from "./bars_svg.js";
import { h, replaceContent } from "./dom.js";
import { headersOf, t } from "./i18n.js";
import { formula, sub } from "./mathml.js";
import { formatCount, formatShare } from "./numbers.js";
import { addedShares, columnTitle, columnsOf } from "./walk_columns.js";
import { createPanel } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";
import { joinedList, signedText, strongestFew } from "./walk_words.js";

const SHOWN_UNITS = 10;

/** The units of a feed-forward layer with the largest values at a token, with one sentence. */
export async function strongestUnits(trace, stack, layer, token) {
  const prefix = `${stack}.${layer}.feedforward`;
  const experts = trace.has(`${prefix}.experts`) ? await trace.array(`${prefix}.experts`, { row: token }) : null;
  const name = labelOf(trace.tokensOf(stack)[token]);
  const sentence = experts ? t("walk.p10.experts", { token: name, experts: joinedList([...experts.data].map(String)) }) : "";
  if (!trace.has(`${prefix}.hidden`)) return { top: [], line: sentence, all: 0 };
  const hidden = (await trace.array(`${prefix}.hidden`, { row: token })).data;
  const top = strongestFew(hidden.map(Math.abs), SHOWN_UNITS).map((unit) => ({ unit, value: hidden[unit] }));
  const values = { unit: top[0].unit, all: formatCount(hidden.length), value: signedText(top[0].value), kind: trace.model.feedforward };
  return { top, line: [t("walk.p10.result", values), sentence].filter(Boolean).join(" "), all: hidden.length, hidden };
}

/** Gate and up values of some units, where the layer has them. */
async function partsOfUnits(trace, stack, layer, token, units) {
  const parts = {};
  for (const part of ["gate", "up"]) {
    const name = `${stack}.${layer}.feedforward.${part}`;
    if (trace.has(name)) parts[part] = (await trace.array(name, { row: token })).data;
  }
  return units.map(({ unit }) => Object.entries(parts).map(([part, values]) => [part, values[unit]]));
}

const stackOf = (selection) => (selection.part === "cross" ? "decoder" : selection.part);

/** The selected experts of a token, what each adds: the size of its output times its weight. */
async function expertParts(trace, stack, layer, token) {
  const prefix = `${stack}.${layer}.feedforward`;
  if (!trace.has(`${prefix}.experts`)) return [];
  const names = ["experts", "expert_weights", "expert_out"];
  const [ids, weights, outputs] = await Promise.all(names.map((name) => trace.array(`${prefix}.${name}`, { row: token })));
  const width = outputs.shape.at(-1);
  return Array.from(ids.data, (id, rank) => {
    const size = lengthOf(outputs.data.subarray(rank * width, (rank + 1) * width));
    return { id, weight: weights.data[rank], size, added: weights.data[rank] * size };
  });
}

function expertFigure(experts, width) {
  const bars = experts.map((one) => ({ label: t("walk.p10.expert", { n: one.id }), value: one.added, text: `${formatShare(one.weight)} × ${signedText(one.size)} = ${signedText(one.added)}` }));
  const line = t("walk.p10.parts", { n: experts.length });
  return [h("p", { class: "figure-note" }, line), barsSvg(bars, { width, labelWidth: 96, name: line })];
}

function unitFigure(units, width) {
  const bars = units.top.map(({ unit, value }) => ({ label: String(unit), value, text: signedText(value) }));
  return barsSvg(bars, { width, labelWidth: 64, isSigned: bars.some((bar) => bar.value < 0), name: units.line });
}

/** Panel 10. @param {import("./walk_panel.js").Walk} walk */
export function unitsPanel(walk) {
  const box = h("div", {});
  const view = { rows: [], experts: [] };
  return createPanel(walk, {
    id: "units",
    question: ({ part, token }) => t("walk.p10.title", { token: labelOf(walk.trace.tokensOf(part)[token]) }),
    content: [box],
    draw: async (selection, isOpen) => {
      const [stack, { layer, token }] = [stackOf(selection), selection];
      const units = await strongestUnits(walk.trace, stack, layer, token);
      if (!isOpen) return units.line;
      const parts = await partsOfUnits(walk.trace, stack, layer, token, units.top);
      view.rows = units.top.map(({ unit, value }, i) => [unit, value, ...parts[i].map(([, part]) => part)]);
      view.experts = await expertParts(walk.trace, stack, layer, token);
      const width = box.clientWidth || 320;
      replaceContent(box, units.top.length ? unitFigure(units, width) : null, view.experts.length ? expertFigure(view.experts, width) : null);
      return units.line;
    },
    picture: () => [...box.querySelectorAll("svg")],
    table: () => unitTable(view),
    maths: () => [formula("hidden", "=", "act", "(", "x", sub("W", "up"), ")"), h("p", { class: "mono" }, shapesOf(walk.trace, `${stackOf(walk.selection())}.${walk.selection().layer}.feedforward`, ["gate", "up", "hidden", "experts", "expert_out", "out"]))],
  });
}

/** The units, or the experts of a layer that has no others. */
function unitTable({ rows, experts }) {
  if (!rows.length) return { columns: headersOf("walk.p10.expertColumns"), rows: experts.map((one) => [one.id, formatShare(one.weight, 4), signedText(one.size, 4), signedText(one.added, 4)]) };
  return { columns: headersOf("walk.p10.columns").slice(0, rows[0].length), rows: rows.map(([unit, ...rest]) => [unit, ...rest.map((one) => signedText(one, 4))]) };
}

/** "up [7,256] hidden [7,256]": the shapes of some stages. */
export function shapesOf(trace, prefix, names) {
  return names
    .map((name) => [name, trace.stages.get(`${prefix}.${name}`)])
    .filter(([, stage]) => stage)
    .map(([name, stage]) => `${name} [${stage.shape}]`)
    .join("  ");
}

/** Cosine of two vectors. */
export function cosineOf(a, b) {
  let [dot, sizeA, sizeB] = [0, 0, 0];
  for (let i = 0; i < a.length; i += 1) {
    dot += a[i] * b[i];
    sizeA += a[i] * a[i];
    sizeB += b[i] * b[i];
  }
  return dot / Math.sqrt(sizeA * sizeB);
}

async function stepNumbers(trace, column, token) {
  const prefix = `${column.stack}.${column.layer}.${column.kind}`;
  const [inputName] = trace.stages.get(`${prefix}.residual`).inputs;
  const [before, after] = await Promise.all([inputName, `${prefix}.residual`].map((name) => trace.array(name, { row: token })));
  return { before: lengthOf(before.data), after: lengthOf(after.data), cosine: cosineOf(before.data, after.data) };
}

export function lengthOf(vector) {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}

/** Panel 9. @param {import("./walk_panel.js").Walk} walk */
export function residualPanel(walk) {
  const { trace } = walk;
  const box = h("div", {});
  const wired = h("p", { class: "hint" }, t("walk.p9.wired", { placement: trace.model.norm }));
  let rows = [];
  return createPanel(walk, {
    id: "residual",
    question: ({ part, token }) => t("walk.p9.title", { token: labelOf(trace.tokensOf(part)[token]) }),
    content: [box, wired],
    draw: async (selection, isOpen) => {
      const columns = columnsOf(trace, stackOf(selection));
      const chosen = columns.find((one) => one.layer === selection.layer && one.part === selection.part);
      const step = await stepNumbers(trace, chosen, selection.token);
      if (isOpen) {
        rows = columns.map((column) => ({ column, share: addedShares(trace, column)?.[selection.token] ?? NaN }));
        const bars = rows.map(({ column, share }) => ({ label: columnTitle(column), value: share, text: formatShare(share), isChosen: column === chosen }));
        replaceContent(box, barsSvg(bars, { width: box.clientWidth || 320, labelWidth: 184, name: t("walk.map.title") }));
      }
      const { before, after, cosine } = step;
      return t("walk.p9.result", { layer: selection.layer, before: signedText(before), after: signedText(after), cosine: signedText(cosine) });
    },
    picture: () => box.querySelector("svg"),
    table: () => ({ columns: [t("walk.layer"), "|out| / |x|"], rows: rows.map(({ column, share }) => [columnTitle(column), formatShare(share, 4)]) }),
    maths: () => [residualFormula(trace.model.norm)],
  });
}

function residualFormula(norm) {
  if (/after/.test(norm)) return formula("x", "←", "norm", "(", "x", "+", "f", "(", "x", ")", ")");
  if (/both/.test(norm)) return formula("x", "←", "x", "+", "norm", "(", "f", "(", "norm", "(", "x", ")", ")", ")");
  return formula("x", "←", "x", "+", "f", "(", "norm", "(", "x", ")", ")");
}
