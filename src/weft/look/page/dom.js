/**
 * Building elements. Text is always a text node: no function here parses HTML.
 * @module dom
 */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const MATH_NAMESPACE = "http://www.w3.org/1998/Math/MathML";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "open", "indeterminate"]);

/** @typedef {Node|string|number|null|undefined|false|Array<Child>} Child */

/**
 * An HTML element.
 * @param {string} tag
 * @param {Object<string, any>} [attributes] attributes; `class`; `on: {click: f}`; `data: {x: 1}`;
 *   null, undefined and false leave one out, true is an attribute without value
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children);
}

/** An SVG element, as `h`. @returns {SVGElement} */
export function svg(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/** A MathML element, as `h`. @returns {MathMLElement} */
export function math(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(MATH_NAMESPACE, tag), attributes, children);
}

function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  appendChildren(element, children);
  return element;
}

function setAttribute(element, name, value) {
  if (name === "on") {
    for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
  } else if (name === "data") {
    for (const [key, one] of Object.entries(value)) element.dataset[key] = String(one);
  } else if (PROPERTIES.has(name) && !(element instanceof SVGElement)) {
    element[name] = value;
  } else if (value !== null && value !== undefined && value !== false) {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Append children; lists are flattened. @param {Element} element @param {Child[]} children */
export function appendChildren(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace everything inside an element. @param {Element} element @param {...Child} children */
export function replaceContent(element, ...children) {
  element.replaceChildren();
  appendChildren(element, children);
  return element;
}

/**
 * Text of a user or a model: isolated from the direction of the text around it, with the language
 * of Chinese text marked.
 * @param {string} text
 * @param {string} [tag]
 * @param {Object<string, any>} [attributes]
 */
export function foreignText(text, tag = "bdi", attributes = {}) {
  return h(tag, { lang: languageOf(text), dir: tag === "bdi" ? null : "auto", ...attributes }, text);
}

/** `zh` for text with Chinese characters, otherwise null. @param {string} text */
export function languageOf(text) {
  return /\p{Script=Han}/u.test(text) && !/[\p{Script=Hiragana}\p{Script=Katakana}]/u.test(text) ? "zh" : null;
}

let lastId = 0;

/** An id for label/for and aria-*. @param {string} prefix */
export function uniqueId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** Call `f` once `milliseconds` have passed without another call. */
export function debounced(f, milliseconds) {
  let timer = 0;
  const call = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...values), milliseconds);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}
