/**
 * Saving a figure as a file: SVG and PNG with the colors of the moment, CSV of its table.
 * @module save
 */

import { h, svg } from "./dom.js";

const INLINED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"];
const PNG_SCALE = 2;
const STACK_GAP = 12;

/** Offer a blob as a download. @param {Blob} blob @param {string} name */
export function downloadBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "-").slice(0, 80);
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** An SVG element as the text of a file, with its computed styles written into it. @param {SVGSVGElement} element */
export function svgText(element) {
  const copy = element.cloneNode(true);
  inlineStyles(element, copy);
  const box = element.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  if (!copy.hasAttribute("width")) copy.setAttribute("width", String(Math.round(box.width)));
  if (!copy.hasAttribute("height")) copy.setAttribute("height", String(Math.round(box.height)));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

function inlineStyles(from, to) {
  const style = getComputedStyle(from);
  for (const name of INLINED) to.setAttribute(name, style.getPropertyValue(name));
  to.removeAttribute("class");
  [...from.children].forEach((child, index) => inlineStyles(child, to.children[index]));
}

/** Pictures below each other as one, which is in the page while it is read. @param {Element[]} parts */
export function stackedPicture(parts) {
  let [width, height] = [0, 0];
  const copies = parts.map((part) => {
    const box = part.getBoundingClientRect();
    const at = { x: 0, y: height, width: box.width, height: box.height };
    width = Math.max(width, box.width);
    height += box.height + STACK_GAP;
    if (part instanceof HTMLCanvasElement) return svg("image", { ...at, href: part.toDataURL("image/png") });
    const copy = part.cloneNode(true);
    for (const [name, value] of Object.entries(at)) copy.setAttribute(name, value);
    return copy;
  });
  const picture = svg("svg", { width, height }, copies);
  const hidden = h("div", { class: "offscreen", "aria-hidden": "true" }, picture);
  parts[0].parentNode.append(hidden);
  setTimeout(() => hidden.remove(), 2000);
  return picture;
}

/** An SVG or canvas element as PNG. @param {SVGSVGElement|HTMLCanvasElement} element @returns {Promise<Blob>} */
export async function pngBlob(element) {
  const canvas = element instanceof HTMLCanvasElement ? element : await drawnSvg(element);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png");
  });
}

async function drawnSvg(element) {
  const box = element.getBoundingClientRect();
  const url = URL.createObjectURL(new Blob([svgText(element)], { type: "image/svg+xml" }));
  const image = new Image();
  try {
    await new Promise((resolve, reject) => {
      image.onload = resolve;
      image.onerror = () => reject(new Error("no picture"));
      image.src = url;
    });
  } finally {
    URL.revokeObjectURL(url);
  }
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(box.width * PNG_SCALE);
  canvas.height = Math.ceil(box.height * PNG_SCALE);
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Rows as CSV (RFC 4180); a cell that a spreadsheet would compute begins with an apostrophe. @param {Array<Array<string|number>>} rows */
export function csvText(rows) {
  const cell = (value) => {
    const text = typeof value === "number" ? String(value) : value.replace(/^(?=[=+@\t\r-])/, "'");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
