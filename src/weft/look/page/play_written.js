/**
 * The text that a model writes: it only grows. The thickness of the line under a token is its
 * probability; pointing at one, or going there with arrows, shows the candidates.
 * @module play_written
 */

import { h, languageOf, replaceContent } from "./dom.js";
import { t } from "./i18n.js";
import { candidateList } from "./inspector.js";
import { formatShare } from "./numbers.js";
import { bytesOf, characterRuns, decodedText, lossyText, pieceLabel } from "./tokens.js";

const LEVELS = 4;

/** The thickness of the line of a probability, 1 to 4. @param {number} p */
export function underlineLevel(p) {
  return Math.max(1, Math.min(LEVELS, Math.ceil(p * LEVELS)));
}

/**
 * @typedef {Object} WrittenText
 * @property {HTMLElement} element
 * @property {(text: string, pieces: import("./play_requests.js").WrittenPiece[]) => void} append
 * @property {() => void} finish       what could not be matched with tokens is shown as it is
 * @property {(isShown: boolean) => void} showTokens  each token as a chip
 * @property {() => import("./play_requests.js").WrittenPiece[]} pieces
 */

/**
 * @param {(piece: import("./play_requests.js").WrittenPiece, index: number) => void} onSelect
 * @param {string} label name of the text
 * @returns {WrittenText}
 */
export function createWrittenText(onSelect, label) {
  const flow = h("div", { class: "written", dir: "auto", tabindex: "0", role: "group", "aria-label": label });
  const popover = createPopover();
  const element = h("div", { class: "written-box" }, flow, popover.element);
  const writing = { flow, pieces: [], spans: [], waiting: [], text: "" };
  let selected = -1;
  const select = (index, isPinned) => {
    writing.spans.forEach((span, place) => span.classList.toggle("is-selected", place === index));
    selected = index;
    if (index < 0 || (isPinned && isBeside())) popover.hide();
    else popover.show(writing.spans[index], writing.pieces[Number(writing.spans[index].dataset.index)]);
    if (isPinned && index >= 0) pin(writing, index, onSelect);
  };
  listen(flow, writing, { select, popover, selectedPlace: () => selected });
  return {
    element,
    append: (text, pieces) => appendPieces(writing, text, pieces),
    finish: () => finishText(writing),
    showTokens: (isShown) => flow.classList.toggle("with-tokens", isShown),
    pieces: () => writing.pieces,
  };
}

/** Whether the inspector is beside the text: it then shows what the popover would. */
function isBeside() {
  return getComputedStyle(document.documentElement).getPropertyValue("--inspector-is-beside").trim() === "1";
}

function pin(writing, place, onSelect) {
  const index = Number(writing.spans[place].dataset.index);
  onSelect(writing.pieces[index], index);
}

/** Pointer and keys of a written text. */
function listen(flow, writing, { select, popover, selectedPlace }) {
  const placeOf = (event) => writing.spans.indexOf(event.target.closest?.(".written-token"));
  flow.addEventListener("pointerover", (event) => {
    const place = placeOf(event);
    if (place >= 0) popover.show(writing.spans[place], writing.pieces[Number(writing.spans[place].dataset.index)]);
  });
  flow.addEventListener("pointerleave", () => popover.hide());
  flow.addEventListener("click", (event) => {
    if (placeOf(event) >= 0) select(placeOf(event), true);
  });
  flow.addEventListener("blur", () => popover.hide());
  flow.addEventListener("keydown", (event) => {
    const last = writing.spans.length - 1;
    const now = selectedPlace();
    const moves = { ArrowLeft: Math.max(0, now - 1), ArrowRight: Math.min(last, now + 1), Home: 0, End: last };
    if (event.key === "Escape" && !popover.element.hidden) {
      event.stopPropagation();
      select(-1, false);
    } else if (event.key in moves && last >= 0) {
      event.preventDefault();
      select(moves[event.key], true);
    }
  });
}

function appendPieces(writing, text, pieces) {
  writing.text += text;
  for (const piece of pieces) {
    writing.pieces.push(piece);
    writing.waiting.push({ ...piece, bytes: piece.bytes ?? [...new TextEncoder().encode(piece.text)], index: writing.pieces.length - 1 });
  }
  let written = 0;
  for (const run of characterRuns(writing.waiting)) {
    written += run.pieces.length;
    writeRun(writing, run);
  }
  writing.waiting.splice(0, written);
  if (!pieces.length) flushText(writing);
}

/** A span for a run, if its text comes next. Bytes that are no text are shown in hex. */
function writeRun(writing, run) {
  const next = [run.text, run.text.trimStart()].find((text) => text && writing.text.startsWith(text));
  if (next === undefined) return;
  writing.text = writing.text.slice(next.length);
  const p = run.pieces.reduce((product, piece) => product * piece.p, 1);
  const shown = run.isText ? next : run.pieces.map(pieceLabel).join(" ");
  const kind = run.isText ? "" : " is-hex";
  const attributes = { class: `written-token p${underlineLevel(p)}${kind}`, lang: languageOf(shown), data: { index: run.pieces.at(-1).index } };
  if (run.pieces.length > 1) attributes.title = run.pieces.map(pieceLabel).join(" + ");
  const span = h("span", attributes, shown);
  writing.spans.push(span);
  writing.flow.append(span);
}

/** Text without tokens, as from a server that sends no probabilities. */
function flushText(writing) {
  if (writing.text && !writing.waiting.length) writing.flow.append(writing.text);
  if (!writing.waiting.length) writing.text = "";
}

function finishText(writing) {
  if (writing.waiting.length) {
    writeRun(writing, { text: lossyText(writing.waiting.flatMap((one) => one.bytes)), isText: false, pieces: writing.waiting });
  }
  writing.waiting = [];
  flushText(writing);
}

/** The candidates of a token, near it. */
function createPopover() {
  const element = h("div", { class: "popover", role: "tooltip", hidden: true });
  const show = (span, piece) => {
    replaceContent(element, h("p", { class: "popover-piece" }, h("bdi", {}, pieceLabel(piece)), " ", h("span", { class: "number" }, formatShare(piece.p))), candidateList(piece.top, 2));
    element.hidden = false;
    place(element, span);
  };
  return { element, show, hide: () => (element.hidden = true) };
}

/** Below the line of the token, inside the box. */
function place(element, span) {
  const box = element.parentElement.getBoundingClientRect();
  const [line] = span.getClientRects();
  const rect = line ?? span.getBoundingClientRect();
  const left = Math.max(0, Math.min(rect.left - box.left, box.width - element.offsetWidth));
  element.style.transform = `translate(${Math.round(left)}px, ${Math.round(rect.bottom - box.top)}px)`;
}

/** What the inspector shows of a token. @param {import("./play_requests.js").WrittenPiece} piece @param {number} index */
export function pieceSelection(piece, index) {
  const bytes = bytesOf(piece);
  const label = pieceLabel(piece);
  const isPart = bytes !== null && decodedText(bytes) === null;
  const facts = [[t("play.probability"), formatShare(piece.p, 4)], [t("play.logprob"), Math.log(piece.p).toFixed(4).replace("-", "\u2212")]];
  if (bytes) facts.push([t("play.bytes"), bytes.length ? bytes.map((one) => one.toString(16).toUpperCase().padStart(2, "0")).join(" ") : "\u2013"]);
  const rank = piece.top.findIndex((one) => one.chosen) + 1;
  const sentence = t(isPart ? "play.token.part" : "play.token.sentence", { piece: label, p: formatShare(piece.p), rank });
  return { title: t("play.token", { i: index }), piece: label, facts, top: piece.top, sentence };
}
