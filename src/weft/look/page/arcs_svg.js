/**
 * Attention of one token as curves whose thickness is the weight.
 *
 *   arcsFrom      arcs in a margin, from one row of a list to others (the map)
 *   linksBetween  lines between two lists of tokens (self-attention and cross-attention)
 * @module arcs_svg
 */

import { svg } from "./dom.js";

const THINNEST = 0.02;
const THICKEST = 8;

/** Stroke width of a weight between 0 and 1; weights under 0.02 are not drawn. */
export function strokeOf(weight) {
  return weight < THINNEST ? 0 : Math.max(1, weight * THICKEST);
}

/**
 * Arcs that leave row `from` at x and bow to the left, at most `reach` pixels.
 * @param {{y: number, weight: number, name: string}[]} ends
 */
export function arcsFrom(fromY, ends, x, reach) {
  const farthest = Math.max(1, ...ends.map((end) => Math.abs(end.y - fromY)));
  const group = svg("g", { class: "arcs" });
  for (const end of ends) {
    const stroke = strokeOf(end.weight);
    if (!stroke) continue;
    const bow = end.y === fromY ? 12 : 12 + ((reach - 16) * Math.abs(end.y - fromY)) / farthest;
    const path = end.y === fromY ? loopAt(x, fromY) : `M${x},${fromY} C${x - bow},${fromY} ${x - bow},${end.y} ${x},${end.y}`;
    group.append(svg("path", { d: path, "stroke-width": stroke, class: "arc" }, svg("title", {}, end.name)));
  }
  return group;
}

/** A small loop: a token that attends to itself. */
function loopAt(x, y) {
  return `M${x},${y - 4} C${x - 14},${y - 10} ${x - 14},${y + 10} ${x},${y + 4}`;
}

/**
 * Lines from the left list to the right list.
 * @param {{from: number, to: number, weight: number, isFaint?: boolean}[]} links  rows and weights
 * @param {{left: number, right: number, yOfLeft: (row: number) => number,
 *          yOfRight: (row: number) => number}} place
 */
export function linksBetween(links, { left, right, yOfLeft, yOfRight }) {
  const group = svg("g", { class: "links" });
  const middle = (left + right) / 2;
  for (const link of links) {
    const stroke = strokeOf(link.weight);
    if (!stroke) continue;
    const [y1, y2] = [yOfLeft(link.from), yOfRight(link.to)];
    group.append(svg("path", {
      d: `M${left},${y1} C${middle},${y1} ${middle},${y2} ${right},${y2}`,
      "stroke-width": stroke, class: link.isFaint ? "arc faint" : "arc",
    }));
  }
  return group;
}
