/**
 * A matrix on a canvas, one pixel buffer at a time: a T x T map is never T x T elements.
 *
 *   values    row-major numbers, rows x columns; NaN and -Infinity are masked and drawn as a hatch
 *   size      in CSS pixels; a matrix with more cells than pixels is averaged over blocks of cells
 * @module heatmap_canvas
 */

import { colorStep } from "./color_ramp.js";

const HATCH_PERIOD = 5;

/**
 * @typedef {Object} Matrix
 * @property {ArrayLike<number>} values
 * @property {number} rows
 * @property {number} columns
 * @property {number} [scale]     value of the darkest color; the largest value if left out
 * @property {boolean} [isSigned]
 */

/** Paint a matrix into a canvas of width x height CSS pixels. */
export function paintMatrix(canvas, matrix, palette, width, height = width) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const cells = cellPixels(matrix, palette, width, height);
  const xs = cellOfPixel(width, cells.columns);
  const ys = cellOfPixel(height, cells.rows);
  for (let y = 0, at = 0; y < height; y += 1) {
    const base = ys[y] * cells.columns;
    for (let x = 0; x < width; x += 1, at += 1) {
      const cell = base + xs[x];
      const isHatched = cells.isMasked[cell] && (x + y) % HATCH_PERIOD === 0;
      pixels[at] = isHatched ? palette.hatch : cells.colors[cell];
    }
  }
  context.putImageData(image, 0, 0);
}

/** For each pixel of a side, the cell it belongs to. */
function cellOfPixel(length, count) {
  return Uint32Array.from({ length }, (_, i) => Math.floor((i * count) / length));
}

/** Color and mask of each cell, after averaging blocks if there are more cells than pixels. */
function cellPixels(matrix, palette, width, height) {
  const small = reduceMatrix(matrix, Math.min(matrix.rows, height), Math.min(matrix.columns, width));
  const scale = matrix.scale ?? largestValue(small.values);
  const colors = new Uint32Array(small.values.length);
  const isMasked = new Uint8Array(small.values.length);
  for (let i = 0; i < colors.length; i += 1) {
    const value = small.values[i];
    isMasked[i] = Number.isFinite(value) ? 0 : 1;
    colors[i] = isMasked[i] ? palette.ground : palette.table[colorStep(value, scale, matrix.isSigned)];
  }
  return { colors, isMasked, rows: small.rows, columns: small.columns };
}

function largestValue(values) {
  let largest = 0;
  for (const value of values) if (Number.isFinite(value) && value > largest) largest = value;
  return largest || 1;
}

/** The matrix averaged to rows x columns blocks; a block without a finite value is masked. */
export function reduceMatrix(matrix, rows, columns) {
  if (rows === matrix.rows && columns === matrix.columns) return matrix;
  const sums = new Float64Array(rows * columns);
  const counts = new Uint32Array(rows * columns);
  const blockOf = cellOfPixel(matrix.columns, columns);
  for (let row = 0; row < matrix.rows; row += 1) {
    const base = Math.floor((row * rows) / matrix.rows) * columns;
    for (let column = 0; column < matrix.columns; column += 1) {
      const value = matrix.values[row * matrix.columns + column];
      if (!Number.isFinite(value)) continue;
      sums[base + blockOf[column]] += value;
      counts[base + blockOf[column]] += 1;
    }
  }
  const values = sums.map((sum, i) => (counts[i] ? sum / counts[i] : NaN));
  return { values, rows, columns };
}

/** The cell [row, column] under a pointer event, or null outside of the canvas. */
export function cellAt(canvas, matrix, event) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * matrix.columns);
  const row = Math.floor(((event.clientY - box.top) / box.height) * matrix.rows);
  const isInside = row >= 0 && column >= 0 && row < matrix.rows && column < matrix.columns;
  return isInside ? [row, column] : null;
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The cell that a key press moves to from [row, column], or null for other keys. */
export function cellAfterKey(key, [row, column], rows, columns) {
  if (key === "Home") return [row, 0];
  if (key === "End") return [row, columns - 1];
  if (!(key in MOVES)) return null;
  const clamp = (value, limit) => Math.max(0, Math.min(limit - 1, value));
  return [clamp(row + MOVES[key][0], rows), clamp(column + MOVES[key][1], columns)];
}
