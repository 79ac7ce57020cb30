/**
 * The steps of a model as columns of the map: attention, cross-attention and feed-forward of each
 * layer, and how much each of them adds.
 * @module walk_columns
 */

import { t } from "./i18n.js";

/** @typedef {{stack: string, layer: number, kind: "attention"|"cross"|"feedforward", part: string}} MapColumn */

/** The columns of a stack, in the order of the computation. @returns {MapColumn[]} */
export function columnsOf(trace, stack) {
  const kinds = trace.isTranslator && stack === "decoder" ? ["attention", "cross", "feedforward"] : ["attention", "feedforward"];
  return Array.from({ length: trace.stacks[stack] }, (_, layer) =>
    kinds.map((kind) => ({ stack, layer, kind, part: kind === "cross" ? "cross" : stack })),
  ).flat();
}

/** "attention of layer 2". @param {MapColumn} column */
export function columnTitle(column) {
  const key = column.kind === "feedforward" ? "ffn" : column.kind;
  return t(`walk.map.${key}`, { layer: column.layer });
}

/** How much a step adds at each token, as a share of the size of its input; null if not kept. */
export function addedShares(trace, { stack, layer, kind }) {
  const prefix = `${stack}.${layer}.${kind}`;
  const residual = trace.stages.get(`${prefix}.residual`);
  if (!residual) return null;
  const added = trace.has(`${prefix}.norm_out`) ? `${prefix}.norm_out` : `${prefix}.out`;
  const [before, after] = [residual.inputs[0], added].map((name) => trace.inline(`norm(${name})`));
  return before && after ? after.data.map((size, token) => size / before.data[token]) : null;
}
