/**
 * The icons: 16 x 16, drawn with lines in the color of the text. A control that shows one always
 * has a name beside or as aria-label.
 * @module icons
 */

import { h, svg } from "./dom.js";

const PATHS = {
  play: "M4 2.5v11l9-5.5z",
  stop: "M3.5 3.5h9v9h-9z",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  edit: "M3 13l.6-2.8L11 2.8l2.2 2.2-7.4 7.4z",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  link: "M6.5 9.5l3-3M7 5l1.6-1.6a2.6 2.6 0 0 1 4 4L11 9M9 11l-1.6 1.6a2.6 2.6 0 0 1-4-4L5 7",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  save: "M8 2v8M5 7l3 3 3-3M3 13h10",
  theme: "M8 3a5 5 0 1 0 0 10zM8 3a5 5 0 0 1 0 10",
  step: "M4 3v10l6-5zM12 3v10",
  down: "M4 6l4 4 4-4",
};

/** @param {keyof PATHS} name @returns {SVGElement} */
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] }),
  );
}

/**
 * A button with an icon and no visible text.
 * @param {keyof PATHS} name
 * @param {string} label its name, also shown as a tooltip
 * @param {() => void} onClick
 */
export function iconButton(name, label, onClick, attributes = {}) {
  const all = { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click: onClick } };
  return h("button", { ...all, ...attributes }, icon(name));
}
