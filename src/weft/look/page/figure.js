/**
 * The frame of a panel: a question as title, one figure, one line with the real numbers, and folded
 * below it "the maths" and "as table"; the figure can be saved.
 * @module figure
 */

import { h, replaceContent, uniqueId } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./i18n.js";
import { csvText, downloadBlob, pngBlob, stackedPicture, svgText } from "./save.js";

/**
 * @typedef {Object} FigureTable
 * @property {string[]} columns   headers; the first is that of the rows' headers
 * @property {Array<Array<string|number>>} rows  the first cell of each is its header
 * @property {number} [numRows]   how many there are, if `rows` are only the first
 */

/**
 * @typedef {Object} FigureOptions
 * @property {string} id         `attention-map`: of the section, in the address and file names
 * @property {string} question   "What does 它 look at?"
 * @property {boolean} [isOpen]  false: title and line only, until it is opened
 * @property {() => (Element|null|Array<Element|null>)} [picture]  what SVG and PNG save: SVG or canvas
 * @property {() => FigureTable} [table]  asked for when it is opened or saved
 * @property {import("./dom.js").Child} [maths]  formula and shapes
 * @property {(isOpen: boolean) => void} [onToggle]
 */

/**
 * @typedef {Object} Figure
 * @property {HTMLElement} element  a <section>
 * @property {HTMLElement} body     where the panel draws
 * @property {(question: string) => void} setQuestion
 * @property {(...line: import("./dom.js").Child[]) => void} setLine  one line with the real numbers
 * @property {(...maths: import("./dom.js").Child[]) => void} setMaths
 * @property {() => void} refresh   draws an open table anew
 * @property {() => void} showTable  opens it
 * @property {() => boolean} isOpen
 * @property {(isOpen: boolean) => void} setOpen
 */

/** @param {FigureOptions} options @returns {Figure} */
export function createFigure(options) {
  const body = h("div", { class: "figure-body", id: uniqueId("figure") });
  const toggle = h("button", { type: "button", class: "figure-toggle", "aria-controls": body.id }, options.question);
  const title = h("h2", { class: "figure-title", id: uniqueId("question") }, toggle);
  const line = h("p", { class: "figure-line" });
  const maths = h("div", { class: "maths" }, options.maths);
  const table = options.table ? tableFold(options) : null;
  const mathsFold = options.maths === undefined ? null : foldOf(t("figure.maths"), maths);
  const folds = h("div", { class: "figure-folds" }, mathsFold, table?.element, saveFold(options));
  const setOpen = (isOpen) => {
    toggle.setAttribute("aria-expanded", String(isOpen));
    body.hidden = folds.hidden = !isOpen;
  };
  toggle.addEventListener("click", () => {
    setOpen(body.hidden);
    options.onToggle?.(!body.hidden);
  });
  setOpen(options.isOpen !== false);
  return {
    element: h("section", { class: "panel", id: options.id, "aria-labelledby": title.id }, title, body, line, folds),
    body,
    setQuestion: (question) => replaceContent(toggle, question),
    setLine: (...children) => replaceContent(line, ...children),
    setMaths: (...children) => replaceContent(maths, ...children),
    refresh: () => table?.refresh(),
    showTable: () => table?.show(),
    isOpen: () => !body.hidden,
    setOpen,
  };
}

/** A folded part. @param {string} label @param {...import("./dom.js").Child} children */
export function foldOf(label, ...children) {
  return h("details", { class: "fold" }, h("summary", {}, label), children);
}

function tableFold(options) {
  const box = h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": options.question });
  const element = foldOf(t("figure.table"), box);
  const refresh = () => {
    if (element.open) replaceContent(box, tableElement(options.table(), options.question));
  };
  element.addEventListener("toggle", refresh);
  const show = () => {
    element.open = true;
    refresh();
    box.focus();
  };
  return { element, refresh, show };
}

/** A real table with headers of rows and columns. @param {FigureTable} table @param {string} caption */
export function tableElement(table, caption) {
  const head = h("tr", {}, table.columns.map((name) => h("th", { scope: "col" }, h("bdi", {}, name))));
  const rows = table.rows.map(([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, first)), rest.map((value) => h("td", {}, h("bdi", {}, value)))),
  );
  const left = (table.numRows ?? table.rows.length) - table.rows.length;
  return h(
    "table",
    {},
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", {}, head),
    h("tbody", {}, rows),
    left > 0 ? h("tfoot", {}, h("tr", {}, h("td", { colspan: table.columns.length }, t("figure.more", { n: left })))) : null,
  );
}

function saveFold(options) {
  const button = (label, save) => h("button", { type: "button", class: "button", on: { click: save } }, icon("save"), label);
  const picture = () => {
    const shown = [options.picture()].flat().filter(Boolean);
    return shown.length > 1 ? stackedPicture(shown) : shown[0];
  };
  const buttons = [];
  if (options.picture) {
    buttons.push(button("SVG", () => saveSvg(options.id, picture())), button("PNG", () => savePng(options.id, picture())));
  }
  if (options.table) buttons.push(button("CSV", () => saveCsv(options.id, options.table())));
  return buttons.length ? foldOf(t("figure.save"), h("div", { class: "button-row" }, buttons)) : null;
}

function saveSvg(name, element) {
  if (!element) return;
  const text = element instanceof SVGElement ? svgText(element) : canvasSvgText(element);
  downloadBlob(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
}

/** A canvas as an image inside an SVG file. */
function canvasSvgText(canvas) {
  const { width, height } = canvas;
  const size = `width="${width}" height="${height}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size}><image ${size} href="${canvas.toDataURL("image/png")}"/></svg>\n`;
}

async function savePng(name, element) {
  if (element) downloadBlob(await pngBlob(element), `${name}.png`);
}

function saveCsv(name, table) {
  downloadBlob(new Blob(["\ufeff", csvText([table.columns, ...table.rows])], { type: "text/csv" }), `${name}.csv`);
}
