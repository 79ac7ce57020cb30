/**
 * Numbers as the page prints them: 1,203; 0.62 (four digits in the inspector); 14 ms.
 * @module numbers
 */

const counts = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @param {number} value */
export function formatCount(value) {
  return counts.format(value);
}

/** A weight or probability. @param {number} value @param {number} [digits] */
export function formatShare(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  const smallest = 10 ** -digits;
  if (value > 0 && value < smallest / 2) return `<${smallest.toFixed(digits)}`;
  if (value < 1 && value > 1 - smallest / 2) return `>${(1 - smallest).toFixed(digits)}`;
  return value.toFixed(digits);
}

/** A signed number, with a true minus sign. @param {number} value @param {number} [digits] */
export function formatSigned(value, digits = 2) {
  return value.toFixed(digits).replace("-", "\u2212");
}

/** @param {number} milliseconds */
export function formatTime(milliseconds) {
  if (milliseconds < 1) return "<1 ms";
  return milliseconds < 10000 ? `${formatCount(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

/** 134.5M, 7.2B, 39K. @param {number} value */
export function formatSize(value) {
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (value >= size) return `${(value / size).toFixed(1)}${letter}`;
  }
  return String(value);
}
