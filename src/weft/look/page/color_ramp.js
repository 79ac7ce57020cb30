/**
 * Colors of numbers in figures. Weights and probabilities use the sequential colors of tokens.css,
 * signed values the three signed ones, symmetric around 0.
 *
 * Matrices read a table of 256 packed pixels (from colors.js); SVG marks use color-mix() of the same
 * variables, which follows a change of theme without being drawn again.
 * @module color_ramp
 */

import { sequentialTable, signedTable, tokenColor } from "./colors.js";

const COLOR_STEPS = 256;
const SEQUENTIAL = ["--ramp-0", "--ramp-1", "--ramp-2"];
const SIGNED = ["--signed-negative", "--signed-zero", "--signed-positive"];

/**
 * The colors with which a matrix is painted in the current theme, as pixels of ImageData.
 * @typedef {{table: Uint32Array, hatch: number, ground: number}} Palette
 */

/** @param {boolean} [isSigned] @returns {Palette} */
export function readPalette(isSigned = false) {
  const bytes = isSigned ? signedTable() : sequentialTable();
  const pixel = (name) => new Uint32Array(new Uint8ClampedArray([...tokenColor(name), 255]).buffer)[0];
  return { table: new Uint32Array(bytes.buffer), hatch: pixel("--mark"), ground: pixel("--surface") };
}

/** Index into a palette's table: of a value between 0 and scale, or between -scale and scale. */
export function colorStep(value, scale, isSigned = false) {
  if (!(scale > 0)) return isSigned ? COLOR_STEPS / 2 : 0;
  const share = isSigned ? (value / scale + 1) / 2 : value / scale;
  return Math.max(0, Math.min(COLOR_STEPS - 1, Math.round(share * (COLOR_STEPS - 1))));
}

/** A CSS color for a share between 0 and 1 of the sequential scale. @param {number} share */
export function rampColor(share) {
  return mixedColor(SEQUENTIAL, Math.max(0, Math.min(1, share)));
}

/** A CSS color for a signed value; `scale` is the largest size of a value in the figure. */
export function signedColor(value, scale) {
  const share = scale > 0 ? (value / scale + 1) / 2 : 0.5;
  return mixedColor(SIGNED, Math.max(0, Math.min(1, share)));
}

function mixedColor(names, share) {
  const low = share <= 0.5 ? 0 : 1;
  const percent = ((share * 2 - low) * 100).toFixed(1);
  return `color-mix(in srgb, var(${names[low + 1]}) ${percent}%, var(${names[low]}))`;
}

/** The largest absolute value, or 1 if all are 0: the scale of a signed figure. */
export function largestSize(values) {
  let largest = 0;
  for (const value of values) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  return largest || 1;
}
