/**
 * Horizontal bars as SVG: one row per item with label, bar and number.
 *
 * Values may be signed (bars start in the middle) and items struck out (excluded by top-k or top-p).
 * A row can be chosen by pointer and by keyboard.
 * @module bars_svg
 */

import { svg } from "./dom.js";
import { rovingItems } from "./roving.js";
import { rampColor, signedColor, largestSize } from "./color_ramp.js";

const BAR_ROW = 24;
const CHAR_WIDTH = 8;

/**
 * @typedef {Object} Bar
 * @property {string} label
 * @property {number} value
 * @property {string} text        the number as shown
 * @property {boolean} [isStruck]
 * @property {boolean} [isChosen]
 * @property {number} [ghost]     a second value drawn as an outline: before a change
 */

/**
 * @param {Bar[]} bars
 * @param {{width: number, labelWidth?: number, scale?: number, isSigned?: boolean, name: string,
 *          choose?: (index: number) => void, id?: string, cut?: number}} options
 *   `id`: of bars that can be chosen, the same when they are drawn anew
 *   `cut`: draw the line between kept and excluded items above this row
 */
export function barsSvg(bars, options) {
  const { width, labelWidth = 96, isSigned = false } = options;
  const numbers = Math.max(6, ...bars.map((bar) => bar.text.length)) * CHAR_WIDTH + 8;
  const plot = { left: labelWidth + 8, width: Math.max(40, width - labelWidth - numbers - 16) };
  const scale = options.scale ?? largestSize(bars.flatMap((bar) => [bar.value, bar.ghost ?? 0]));
  const picture = svg("svg", {
    width, height: bars.length * BAR_ROW, viewBox: `0 0 ${width} ${bars.length * BAR_ROW}`,
    role: options.choose ? "group" : "img", "aria-label": options.name, class: "bars",
  });
  bars.forEach((bar, row) => {
    picture.append(barRow(bar, row, { plot, scale, isSigned, width, labelWidth, choose: options.choose }));
  });
  if (options.choose) rovingItems(options.id, [...picture.children]);
  if (options.cut > 0 && options.cut < bars.length) {
    const y = options.cut * BAR_ROW;
    picture.append(svg("line", { x1: 0, x2: width, y1: y, y2: y, class: "cut" }));
  }
  return picture;
}

function barRow(bar, row, layout) {
  const { plot, isSigned, width, labelWidth, choose } = layout;
  const y = row * BAR_ROW;
  const group = svg("g", {
    class: `bar-row${bar.isStruck ? " struck" : ""}${bar.isChosen ? " chosen" : ""}${choose ? " can-choose" : ""}`,
    "aria-label": choose ? `${bar.label} ${bar.text}` : null,
    "aria-pressed": choose ? String(bar.isChosen === true) : null,
    on: choose ? { click: () => choose(row) } : {},
  });
  const label = svg("text", { x: labelWidth, y: y + 16, "text-anchor": "end", class: "label" });
  label.textContent = fitLabel(bar.label, labelWidth);
  const number = svg("text", { x: width - 8, y: y + 16, "text-anchor": "end", class: "number" });
  number.textContent = bar.text;
  group.append(svg("title", {}, `${bar.label}  ${bar.text}`));
  if (bar.isChosen) {
    group.append(svg("rect", { x: 1, y: y + 1, width: width - 2, height: BAR_ROW - 2, rx: 6, class: "outline" }));
  }
  if (bar.ghost !== undefined) group.append(barRect(bar.ghost, y, layout, true));
  group.append(label, barRect(bar.value, y, layout, false), number);
  if (bar.isStruck) {
    group.append(svg("line", { x1: 4, x2: labelWidth, y1: y + 12, y2: y + 12, class: "strike" }));
  }
  if (isSigned) {
    const zero = plot.left + plot.width / 2;
    group.append(svg("line", { x1: zero, x2: zero, y1: y, y2: y + BAR_ROW, class: "axis" }));
  }
  return group;
}

function barRect(value, y, { plot, scale, isSigned }, isGhost) {
  const share = Math.max(-1, Math.min(1, Number.isFinite(value) ? value / scale : 0));
  const length = Math.abs(share) * (isSigned ? plot.width / 2 : plot.width);
  const zero = isSigned ? plot.left + plot.width / 2 : plot.left;
  const box = { x: share < 0 ? zero - length : zero, y: y + 6, width: Math.max(length, 1), height: 12 };
  if (isGhost) return svg("rect", { ...box, class: "ghost" });
  const fill = isSigned ? signedColor(value, scale) : rampColor(0.35 + 0.65 * Math.abs(share));
  return svg("rect", { ...box, class: "mark", fill });
}

/** Width of a label in pixels, about: a wide character takes 14. @param {string} label */
export function labelPixels(label) {
  let used = 0;
  for (const char of label) used += char.codePointAt(0) > 0x2e7f ? 14 : CHAR_WIDTH;
  return used;
}

/** A label cut to a width in pixels, with "…" at the end. */
export function fitLabel(label, width) {
  if (labelPixels(label) <= width) return label;
  let kept = "";
  for (const char of label) {
    if (labelPixels(kept + char) > width - CHAR_WIDTH) break;
    kept += char;
  }
  return `${kept}…`;
}
