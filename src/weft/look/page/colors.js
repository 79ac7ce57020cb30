/**
 * The colors of tokens.css as numbers, for canvas. Values are read when they are asked for, so that
 * they follow the theme; `weft-theme` on the root element and the media query tell when to draw anew.
 * @module colors
 */

const TABLE_SIZE = 256;

/** The red, green and blue of a name in tokens.css, 0 to 255. @param {string} name `--ramp-1` */
export function tokenColor(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.documentElement.append(probe);
  const numbers = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  probe.remove();
  return numbers.slice(0, 3);
}

/** 256 colors of weights and probabilities, from 0 to 1. @returns {Uint8ClampedArray} rgba */
export function sequentialTable() {
  return colorTable(["--ramp-0", "--ramp-1", "--ramp-2"].map(tokenColor));
}

/** 256 colors of signed values: index 128 is 0. @returns {Uint8ClampedArray} rgba */
export function signedTable() {
  return colorTable(["--signed-negative", "--signed-zero", "--signed-positive"].map(tokenColor));
}

function colorTable(stops) {
  const table = new Uint8ClampedArray(4 * TABLE_SIZE);
  for (let index = 0; index < TABLE_SIZE; index += 1) {
    const place = (index / (TABLE_SIZE - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    for (let channel = 0; channel < 3; channel += 1) {
      const [from, to] = [stops[left][channel], stops[left + 1][channel]];
      table[4 * index + channel] = from + (to - from) * (place - left);
    }
    table[4 * index + 3] = 255;
  }
  return table;
}

/** Call `f` whenever the theme changes; returns what ends that. @param {() => void} f */
export function onThemeChange(f) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  root.addEventListener("weft-theme", f);
  query.addEventListener("change", f);
  return () => {
    root.removeEventListener("weft-theme", f);
    query.removeEventListener("change", f);
  };
}
