/**
 * The ten states of a place that shows a result: empty, loading, streaming, reduced, not applicable,
 * error, busy (429), key needed (401), offline, expired trace. Each function returns an element.
 * @module states
 */

import { RequestError, writeApiKey } from "./api.js";
import { foreignText, h, replaceContent, uniqueId } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./i18n.js";

const QUIET_MS = 150;
const EXPLAIN_MS = 1000;

/** @typedef {{text: string, label?: string}} Example */

/**
 * Nothing was run yet: examples to choose from.
 * @param {string} sentence what the visitor can do here
 * @param {Example[]} examples
 * @param {(example: Example) => void} onChoose
 */
export function emptyState(sentence, examples, onChoose) {
  const chips = examples.map((one) =>
    h("li", {}, h("button", { type: "button", class: "chip", on: { click: () => onChoose(one) } }, foreignText(one.label ?? one.text))),
  );
  return h(
    "div",
    { class: "state state-empty", data: { state: "empty" } },
    h("p", {}, sentence),
    chips.length ? h("ul", { class: "chips", "aria-label": t("state.examples") }, chips) : null,
  );
}

/**
 * Nothing for 150 ms, then a skeleton, after 1 s a sentence and Stop.
 * @param {{lines?: number, sentence?: string, onStop?: () => void}} options
 * @returns {HTMLElement & {end: () => void}} `end` stops its timers and removes it
 */
export function loadingState({ lines = 3, sentence = t("state.loading"), onStop } = {}) {
  const bars = Array.from({ length: lines }, () => h("div", { class: "skeleton-line" }));
  const words = h("p", { class: "state-words", role: "status" });
  const element = h(
    "div",
    { class: "state state-loading is-quiet", "aria-busy": "true", data: { state: "loading" } },
    h("div", { class: "skeleton", "aria-hidden": "true" }, bars),
    words,
  );
  const timers = [
    setTimeout(() => element.classList.remove("is-quiet"), QUIET_MS),
    setTimeout(() => replaceContent(words, sentence, onStop ? [" ", stopButton(onStop)] : []), EXPLAIN_MS),
  ];
  element.end = () => {
    timers.forEach(clearTimeout);
    element.remove();
  };
  return element;
}

/** @param {() => void} onStop */
export function stopButton(onStop) {
  return h("button", { type: "button", class: "button", on: { click: onStop } }, icon("stop"), t("state.stop"));
}

/**
 * A result that is not complete, with what is left out.
 * @param {string} sentence "reduced view: 16 of 1,203 keys per row, covering 0.93 of the weight"
 * @param {() => void} [onExact] shows the exact row
 */
export function reducedNotice(sentence, onExact) {
  return h(
    "p",
    { class: "state state-reduced", data: { state: "reduced" } },
    h("strong", {}, t("state.reduced")),
    " ",
    sentence,
    onExact ? [" ", h("button", { type: "button", class: "link", on: { click: onExact } }, t("state.exact"))] : null,
  );
}

const STANDARD_EXAMPLES = ["我吃了苹果，它很甜", "I ate the apple because it was sweet.", "The keys to the cabinet are on the table.", "The quick brown fox jumps over the lazy dog, and the quick brown cat sleeps."];

/** The model's own examples, then general ones. @param {import("./app.js").ModelInfo} model @returns {Example[]} */
export function examplesOf(model) {
  const own = model.examples ?? [];
  return [...own, ...STANDARD_EXAMPLES.filter((text) => !own.some((one) => one.text === text)).map((text) => ({ text }))].slice(0, 4);
}

/** One sentence about why there is nothing to show. @param {string} sentence @param {...import("./dom.js").Child} more */
export function notApplicable(sentence, ...more) {
  return h("div", { class: "state state-none", data: { state: "not-applicable" } }, h("p", {}, sentence), more);
}

/**
 * The state of an error: busy, key needed, offline, expired or plain.
 * @param {unknown} error
 * @param {() => void} onRetry
 */
export function errorState(error, onRetry) {
  const known = error instanceof RequestError ? error : new RequestError(String(error?.message ?? error), -1);
  if (known.status === 429 || (known.status === 503 && known.retryAfter !== null)) return busyState(known, onRetry);
  if (known.status === 401 || (known.status === 403 && /API key/.test(known.message))) return keyState(known, onRetry);
  if (known.status === 403) return notApplicable(t("state.disabled"));
  if (known.status === 0) return plainError("offline", t("state.offline"), onRetry);
  if (known.code === "trace_expired") return expiredState(onRetry);
  return plainError("error", known.message, onRetry);
}

function plainError(kind, sentence, onRetry) {
  return h(
    "div",
    { class: "state state-error", role: "alert", data: { state: kind } },
    h("p", {}, h("strong", {}, t(kind === "offline" ? "state.offline.word" : "state.error")), " ", foreignText(sentence)),
    retryButton(onRetry),
  );
}

function retryButton(onRetry) {
  return h("button", { type: "button", class: "button", on: { click: onRetry } }, icon("retry"), t("state.retry"));
}

/** Counts down Retry-After, then offers Retry. */
function busyState(error, onRetry) {
  const button = retryButton(onRetry);
  const count = h("span", { class: "number" });
  let left = Math.max(1, Math.ceil(error.retryAfter ?? 1));
  const tick = () => {
    count.textContent = left > 0 ? t("state.busy.wait", { n: left }) : t("state.busy.ready");
    button.disabled = left > 0;
    if (left > 0 && (element.isConnected || left === Math.ceil(error.retryAfter ?? 1))) setTimeout(tick, 1000);
    left -= 1;
  };
  const element = h(
    "div",
    { class: "state state-busy", role: "alert", data: { state: "busy" } },
    h("p", {}, h("strong", {}, t("state.busy")), " ", foreignText(error.message)),
    h("p", { class: "state-row" }, button, " ", count),
  );
  tick();
  return element;
}

/** A field for the API key, in the place of the result. */
function keyState(error, onRetry) {
  const id = uniqueId("key");
  const field = h("input", { id, type: "password", autocomplete: "off", class: "field", required: true });
  const submit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    writeApiKey(field.value.trim());
    onRetry();
  };
  return h(
    "form",
    { class: "state state-key", data: { state: "key" }, on: { submit } },
    h("p", { role: "alert" }, h("strong", {}, t("state.key")), /^no API key/.test(error.message) ? null : [" ", foreignText(error.message)]),
    h("label", { for: id }, t("state.key.label")),
    h("div", { class: "state-row" }, field, h("button", { type: "submit", class: "button" }, t("state.key.use"))),
    h("p", { class: "hint" }, t("state.key.hint")),
  );
}

/** A trace that the server has dropped: it is run again at once. */
function expiredState(onRetry) {
  queueMicrotask(onRetry);
  return h("p", { class: "state state-expired", role: "status", data: { state: "expired" } }, t("state.expired"));
}

/** The banner over the page while the server cannot be reached. */
export function offlineBanner() {
  return h("p", { class: "banner", role: "status", data: { state: "offline" } }, h("strong", {}, t("state.offline.word")), " ", t("state.reconnecting"));
}
