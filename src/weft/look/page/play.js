/**
 * Play: use the model. Chat, completion, translation with alternatives, embeddings.
 * @module play
 */

import { debounced, h, replaceContent, uniqueId } from "./dom.js";
import { t } from "./i18n.js";
import { createConversation } from "./play_chat.js";
import { createCodeSection } from "./play_code.js";
import { startEmbedding } from "./play_embeddings.js";
import { modelCard, parameterForm } from "./play_parameters.js";
import { PARAMETERS, alternativesRequest, modesOf, playRequest } from "./play_requests.js";
import { keepingPlace, runButtons, scrollToEnd, showAlternatives, startRun } from "./play_run.js";
import { emptyState, notApplicable } from "./states.js";

const BUILT_IN = 4;
const MAX_EXAMPLES = 4;
const WRITE_HASH_MS = 300;

/**
 * @param {HTMLElement} root
 * @param {import("./app.js").Context} context
 * @returns {import("./app.js").View}
 */
export function mountPlay(root, context) {
  let place = buildPlay(root, context, context.kept);
  return {
    update(state, changed) {
      const isElsewhere = ["mode", "text", "turns", "system"].some((name) => changed.has(name)) && !place.isWriting;
      const hasParameters = Object.values(PARAMETERS).flat().some((name) => changed.has(name));
      if (isElsewhere) {
        place.unmount();
        place = buildPlay(root, context);
      } else if (hasParameters) place.code.update();
    },
    keep: () => keptPlay(place),
    unmount: () => place.unmount(),
    onKey: (key) => key === "Escape" && place.stop(),
  };
}

/** The answers, also one that is being written; errors are not kept. */
function keptPlay(place) {
  const { output, chat, run, last, mode } = place;
  const hasAnswer = !place.root.querySelector(".state-empty, .state-error, .state-busy, .state-key");
  const kept = { mode, parts: hasAnswer ? [...output.children] : [], answers: chat?.answers, run: hasAnswer ? run : null, last, unmounts: place.unmounts };
  Object.assign(place, { unmounts: [], run: hasAnswer ? null : run, abort: hasAnswer ? null : place.abort });
  return kept;
}

/** What belongs to one mode; replaced as a whole when another is chosen. */
function buildPlay(root, context, kept = null) {
  const { store, model } = context;
  const modes = modesOf(model);
  const wanted = store.get().mode;
  const mode = modes.includes(wanted) ? wanted : modes[0];
  const place = { root, context, mode, run: null, isWriting: false, abort: null, last: null, unmounts: [], kept: kept?.mode === mode ? kept : null };
  place.set = (patch) => {
    place.isWriting = true;
    store.set(patch);
    place.isWriting = false;
  };
  place.stop = () => stopRun(place);
  place.unmount = () => {
    stopRun(place);
    place.writeText.cancel();
    place.unmounts.forEach((f) => f());
  };
  context.setRail(modes.map((one) => ({ id: one, label: t(`play.mode.${one}`), isCurrent: one === mode, onSelect: () => store.set({ mode: one, turns: [] }, { push: true }) })));
  context.inspector.show(null);
  context.inspector.setLabel(t("play.sheet"));
  fillPlay(place, wanted && wanted !== mode ? wanted : null);
  return place;
}

function fillPlay(place, missingMode) {
  const { root, context, mode } = place;
  place.output = h("div", { class: "play-output" });
  place.composer = createComposer(place);
  place.chat = mode === "chat" ? createConversation(context, chatActions(place), place.kept?.answers) : null;
  place.code = createCodeSection(context, () => ({ mode, state: { ...context.store.get(), text: place.field.value } }));
  const parts = mode === "chat" ? [h("div", { class: "play-thread" }, place.chat.element, place.output), place.composer] : [place.composer, place.output];
  root.dataset.mode = mode;
  const title = h("h1", { class: "play-title" }, t(`play.title.${mode}`));
  replaceContent(root, title, missingMode ? notApplicable(t("play.missing", { mode: t(`play.mode.${missingMode}`) })) : null, parts);
  context.inspector.setSections(parameterForm(mode, context), place.code.element, modelCard(context));
  place.chat?.update(context.store.get().turns, place.kept?.run?.element);
  if (place.kept) showKeptAnswer(place, place.kept);
  if (!place.output.children.length && !context.store.get().turns.length) showPlayEmpty(place);
}

function showKeptAnswer(place, { parts, run, last, unmounts }) {
  place.last = last;
  place.unmounts.push(...unmounts);
  replaceContent(place.output, parts);
  if (run) begin(place, run);
}

/** The input with its label, Run and Stop. */
function createComposer(place) {
  const { context, mode } = place;
  const id = uniqueId("text");
  const examples = playExamples(place);
  const text = context.store.get().text || (context.store.get().turns.length ? "" : (examples[0]?.text ?? ""));
  place.field = h("textarea", { id, class: "field", rows: { embeddings: 5, chat: 2 }[mode] ?? 3, value: text, dir: "auto", spellcheck: "false", placeholder: mode === "chat" ? t("play.placeholder.chat") : null });
  place.writeText = debounced(() => place.set({ text: place.field.value }), WRITE_HASH_MS);
  place.field.addEventListener("input", () => {
    place.writeText();
    place.code.update();
  });
  place.buttons = runButtons(t(`play.run.${mode}`), place.stop);
  const submit = (event) => {
    event.preventDefault();
    if (place.run === null) runInput(place);
  };
  const form = h(
    "form",
    { class: "composer", on: { submit } },
    mode === "chat" ? systemField(place) : null,
    h("label", { for: id, class: "composer-label" }, t(`play.label.${mode}`)),
    place.field,
    h("div", { class: "button-row composer-foot" }, place.buttons.run, place.buttons.stop, h("span", { class: "hint" }, "Ctrl Enter"), place.mode === "chat" ? newChatButton(place) : null),
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  });
  return form;
}

function systemField(place) {
  const { store } = place.context;
  const id = uniqueId("system");
  const field = h("textarea", { id, class: "field", rows: 2, value: store.get().system, dir: "auto" });
  const write = debounced(() => place.set({ system: field.value }), WRITE_HASH_MS);
  field.addEventListener("input", write);
  place.unmounts.push(write.cancel);
  place.system = () => field.value;
  return h("details", { class: "fold", open: store.get().system !== "" }, h("summary", {}, t("play.system")), h("label", { for: id, class: "visually-hidden" }, t("play.system")), field);
}

function newChatButton(place) {
  const clear = () => {
    place.stop();
    place.context.store.set({ turns: [], text: "" }, { push: true });
  };
  return h("button", { type: "button", class: "link", on: { click: clear } }, t("play.new"));
}

/** The model's examples, or those of its kind. */
function playExamples({ context, mode }) {
  const own = (context.model.examples ?? []).slice(0, MAX_EXAMPLES);
  if (own.length && (mode === "translation" || mode === "completion")) return own;
  if (own.length > 1 && mode === "embeddings") return [{ text: own.map((one) => one.text).join("\n"), label: t("play.examples.own") }, ...builtIn(mode)];
  return builtIn(mode);
}

function builtIn(mode) {
  return Array.from({ length: BUILT_IN }, (_, index) => ({ text: t(`play.example.${mode}.${index}`) }));
}

function showPlayEmpty(place) {
  const [first, ...others] = playExamples(place);
  const isFirst = place.field.value === (first?.text ?? "");
  const chips = (isFirst ? others : [first, ...others]).slice(0, 3).map((one) => ({ ...one, label: one.label ?? one.text.replaceAll("\n", " \u00b7 ") }));
  const choose = (example) => {
    place.field.value = example.text;
    place.set({ text: example.text });
    place.code.update();
    place.field.focus();
  };
  replaceContent(place.output, emptyState(t(`play.empty.${place.mode}`), chips, choose));
}

function runInput(place) {
  if (!place.field.value.trim()) {
    place.field.focus();
    return;
  }
  place.writeText.cancel();
  place.set({ text: place.field.value, ...(place.system ? { system: place.system() } : {}) });
  if (place.mode === "chat") sendMessage(place);
  else if (place.mode === "embeddings") embed(place);
  else write(place);
}

function begin(place, run) {
  place.run = run;
  place.buttons.setRunning(true);
  run.ended.then(() => {
    if (place.run !== run) return;
    place.run = null;
    place.buttons.setRunning(false);
  });
}

function stopRun(place) {
  place.abort?.abort();
  if (place.run === null) return false;
  place.run.stop();
  return true;
}

function embed(place) {
  const run = startEmbedding(place.context, playRequest("embeddings", place.context.store.get()), () => runInput(place));
  place.unmounts.push(run.unmount);
  replaceContent(place.output, run.element);
  begin(place, run);
}

/** Completion and translation. */
function write(place) {
  const { context, mode } = place;
  const state = context.store.get();
  place.abort = new AbortController();
  const run = startRun(context, { mode, request: playRequest(mode, state), onRetry: () => runInput(place), previous: place.last });
  const more = h("div", { class: "run-more" });
  replaceContent(place.output, run.element, more);
  begin(place, run);
  run.ended.then(({ isComplete }) => {
    if (isComplete) place.last = run.element;
    if (isComplete && mode === "translation" && state.alternatives) showAlternatives(context, alternativesRequest(state), more, place.abort.signal);
  });
}

function sendMessage(place) {
  const { store } = place.context;
  const turns = [...store.get().turns, { role: "user", content: place.field.value }];
  place.field.value = "";
  place.set({ turns, text: "" });
  answerTurns(place, null);
}

/** Let the model answer the turns. @param {Node|null} previous the answer that is replaced */
function answerTurns(place, previous) {
  const { context, chat } = place;
  const retry = () => answerTurns(place, previous);
  replaceContent(place.output);
  const turns = context.store.get().turns;
  const run = startRun(context, { mode: "chat", request: playRequest("chat", { ...context.store.get(), text: "" }), onRetry: retry, previous });
  chat.update(turns, run.element);
  scrollToEnd();
  begin(place, run);
  run.ended.then(({ text }) => {
    if (!run.element.isConnected || !text) return;
    const turn = { role: "assistant", content: text };
    chat.keep(turn, run.element);
    place.set({ turns: [...turns, turn] });
    keepingPlace(() => chat.update(place.context.store.get().turns));
    place.code.update();
  });
}

function chatActions(place) {
  const { store } = place.context;
  return {
    isRunning: () => place.run !== null,
    regenerate() {
      const turns = store.get().turns;
      const previous = place.chat.answerOf(turns.at(-1)) ?? null;
      place.set({ turns: turns.slice(0, -1) });
      answerTurns(place, previous);
    },
    resend(index, text) {
      place.set({ turns: [...store.get().turns.slice(0, index), { role: "user", content: text }] });
      answerTurns(place, null);
    },
  };
}
