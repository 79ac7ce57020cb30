/**
 * MathML from small expressions: strings become identifiers, numbers or operators by themselves.
 *
 *   formula(["softmax", "(", over(["q", "·", "k"], root(sub("d", "k"))), ")"])
 * @module mathml
 */

import { math } from "./dom.js";

function mathNode(tag, ...children) {
  return math(tag, {}, children.map(mathTerm));
}

function mathTerm(term) {
  if (term instanceof Node) return term;
  if (Array.isArray(term)) return mathNode("mrow", ...term);
  const text = String(term);
  const isNumber = /^[-−]?[\d.,]+$/.test(text);
  const isOperator = /^[^\p{L}\d]+$/u.test(text);
  return math(isNumber ? "mn" : isOperator ? "mo" : "mi", {}, text);
}

/** A formula of its own line. */
export function formula(...terms) {
  return math("math", { display: "block" }, mathNode("mrow", ...terms));
}

export const over = (above, below) => mathNode("mfrac", above, below);
export const root = (term) => mathNode("msqrt", term);
export const sub = (base, index) => mathNode("msub", base, index);
export const sup = (base, power) => mathNode("msup", base, power);
export const subsup = (base, index, power) => mathNode("msubsup", base, index, power);
export const sumOver = (index) => mathNode("munder", "∑", index);
