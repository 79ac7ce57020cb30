/**
 * One run: from the request to the end of the answer, with its times. The element has every state of
 * a run: loading, streaming, the answer, errors.
 * @module play_run
 */

import { isAborted, postJson } from "./api.js";
import { foreignText, h, replaceContent } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./i18n.js";
import { formatCount, formatTime } from "./numbers.js";
import { answerParts } from "./play_requests.js";
import { createWrittenText, pieceSelection } from "./play_written.js";
import { errorState, loadingState } from "./states.js";

/** A shorter answer came in one piece, whose duration is that of the network. */
const MIN_RATE_SECONDS = 0.2;
const HIDDEN_FLUSH_MS = 100;

/**
 * @typedef {Object} Run
 * @property {HTMLElement} element
 * @property {() => void} stop
 * @property {Promise<{text: string, isComplete: boolean}>} ended  never rejected
 */

/**
 * @param {import("./app.js").Context} context
 * @param {{mode: string, request: {path: string, body: Object}, onRetry: () => void, previous?: Node|null}} options
 *   `previous`: the last good result, which stays, dimmed, until this one has its first text
 * @returns {Run}
 */
export function startRun(context, { mode, request, onRetry, previous = null }) {
  const abort = new AbortController();
  const times = { begin: performance.now(), first: 0, end: 0 };
  const written = createWrittenText((piece, index) => context.inspector.show(pieceSelection(piece, index)), t("play.answer"));
  const reasoning = h("details", { class: "fold reasoning", hidden: true }, h("summary", {}, t("play.reasoning")), h("div", { class: "plain", dir: "auto" }));
  const status = h("p", { class: "run-times", role: "status" });
  const place = h("div", {}, previous);
  const jump = jumpButton();
  const element = h("div", { class: "run", "aria-busy": "true", data: { state: "streaming" } }, place, reasoning, written.element, h("div", { class: "run-foot" }, status), jump);
  previous?.classList?.add("is-dimmed");
  const loading = loadingState({ lines: 2, sentence: t("play.waiting"), onStop: () => abort.abort() });
  place.append(loading);
  const answer = { text: "", reasoning: "", usage: null, finish: null, isComplete: false };
  const arrived = (part) => {
    if (!times.first && (part.text || part.reasoning || part.pieces.length)) times.first = performance.now();
  };
  const show = (part) => {
    if (times.first && place.isConnected) {
      loading.end();
      place.remove();
    }
    takePart(answer, part, { written, reasoning });
    requestAnimationFrame(jump.update);
  };
  const ended = readAnswer({ mode, request, signal: abort.signal, arrived, show }).then(
    () => (answer.isComplete = true),
    (error) => failed(error, { element, place, loading, onRetry }),
  ).then(() => {
    times.end = performance.now();
    keepingPlace(() => loading.end());
    jump.remove();
    keepingPlace(() => finishRun({ context, element, written, status, answer, times }));
    return { text: answer.text, isComplete: answer.isComplete };
  });
  return { element, stop: () => abort.abort(), ended };
}

/** Show the parts of an answer, once for each frame of the screen: a part for itself costs a layout. */
async function readAnswer({ mode, request, signal, arrived, show }) {
  const waiting = [];
  let isPlanned = false;
  const flush = () => {
    isPlanned = false;
    const parts = waiting.splice(0);
    if (parts.length) keepingPlace(() => parts.forEach(show));
  };
  try {
    for await (const part of answerParts(mode, request, signal)) {
      arrived(part);
      waiting.push(part);
      if (!isPlanned) document.hidden ? setTimeout(flush, HIDDEN_FLUSH_MS) : requestAnimationFrame(flush);
      isPlanned = true;
    }
  } finally {
    flush();
  }
}

/** Change the page without moving what the reader looks at; at the end of the page it stays there. */
export function keepingPlace(change) {
  const root = document.scrollingElement;
  const wasAtEnd = isAtEnd(root);
  change();
  if (wasAtEnd) scrollToEnd();
}

function isAtEnd(root) {
  return root.scrollTop + root.clientHeight >= root.scrollHeight - 2;
}

export function scrollToEnd() {
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
}

/** A button over the end of a text that grows below what the reader sees. */
function jumpButton() {
  const button = h("button", { type: "button", class: "button jump", hidden: true, on: { click: scrollToEnd } }, icon("down"), t("play.jump"));
  button.update = () => (button.hidden = isAtEnd(document.scrollingElement));
  return button;
}

function takePart(answer, part, { written, reasoning }) {
  answer.text += part.text;
  answer.usage = part.usage ?? answer.usage;
  answer.finish = part.finish ?? answer.finish;
  if (part.reasoning) {
    reasoning.hidden = false;
    reasoning.lastElementChild.append(part.reasoning);
  } else {
    written.append(part.text, part.pieces);
  }
}

function failed(error, { element, place, loading, onRetry }) {
  if (isAborted(error)) return;
  loading.end();
  keepingPlace(() => element.append(errorState(error, onRetry)));
  if (!place.isConnected) return;
  place.querySelector(".is-dimmed")?.setAttribute("aria-hidden", "false");
}

function finishRun({ context, element, written, status, answer, times }) {
  written.finish();
  element.setAttribute("aria-busy", "false");
  element.dataset.state = answer.isComplete ? "done" : "stopped";
  if (!times.first) return;
  replaceContent(status, timeFacts(answer, times, written.pieces().length).join(" \u00b7 "));
  status.after(tokensToggle(written));
  context.announce(t("play.finished", { text: answer.text.slice(0, 400) }));
}

function timeFacts(answer, times, numPieces) {
  const { usage } = answer;
  const number = usage?.completion ?? numPieces;
  const seconds = (times.end - times.first) / 1000;
  const facts = [t("play.time.first", { time: formatTime(times.first - times.begin) }), t("play.time.tokens", { n: formatCount(number) })];
  if (number > 1 && seconds >= MIN_RATE_SECONDS) facts.push(t("play.time.rate", { n: formatCount((number - 1) / seconds) }));
  if (usage) facts.push(t("play.time.prompt", { n: formatCount(usage.prompt) }));
  if (usage?.cached !== null && usage?.cached !== undefined) facts.push(t("play.time.cached", { n: formatCount(usage.cached) }));
  if (!answer.isComplete) facts.push(t("play.stopped"));
  else if (answer.finish === "length") facts.push(t("play.length"));
  return facts;
}

function tokensToggle(written) {
  const button = h("button", { type: "button", class: "link", "aria-pressed": "false" }, t("play.tokens"));
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isShown));
    written.showTokens(isShown);
  });
  return button;
}

/** The next best translations, below the first. @param {import("./app.js").Context} context @param {{path: string, body: Object}} request */
export async function showAlternatives(context, request, place, signal) {
  const loading = loadingState({ lines: 1 });
  place.append(loading);
  try {
    const result = await postJson(request.path, request.body, { signal });
    const texts = [result.translatedText, ...(result.alternatives ?? [])];
    replaceContent(place, h("h3", {}, t("play.alternatives")), h("ol", { class: "alternatives" }, texts.map((text) => h("li", {}, foreignText(text, "span")))));
  } catch (error) {
    if (!isAborted(error)) replaceContent(place, errorState(error, () => showAlternatives(context, request, replaceContent(place), signal)));
  } finally {
    loading.end();
  }
}

/** The main button, and Stop while something runs. @param {string} label */
export function runButtons(label, onStop) {
  const run = h("button", { type: "submit", class: "button button-main", "aria-keyshortcuts": "Control+Enter" }, icon("play"), label);
  const stop = h("button", { type: "button", class: "button", hidden: true, on: { click: onStop } }, icon("stop"), t("state.stop"));
  const setRunning = (isRunning) => {
    run.hidden = isRunning;
    stop.hidden = !isRunning;
  };
  return { run, stop, setRunning };
}
