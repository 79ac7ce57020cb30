/**
 * The turns of a conversation, with edit, copy and regenerate.
 * @module play_chat
 */

import { foreignText, h, replaceContent } from "./dom.js";
import { icon, iconButton } from "./icons.js";
import { t } from "./i18n.js";
import { copyText } from "./play_code.js";

/**
 * @typedef {Object} ChatActions
 * @property {(index: number, text: string) => void} resend  a user's turn with another text; what follows is dropped
 * @property {() => void} regenerate    the last answer
 * @property {() => boolean} isRunning
 */

/**
 * The list of turns. An answer that was written in this page keeps its element, with its
 * probabilities; others are plain text.
 * @param {import("./app.js").Context} context
 * @param {ChatActions} actions
 * @param {Map<Object, Node>} [answers]  of the conversation before it was drawn anew
 */
export function createConversation(context, actions, answers = new Map()) {
  const element = h("ol", { class: "turns", "aria-label": t("play.conversation") });
  /** @param {Array<{role: string, content: string}>} turns @param {Node|null} running element of the answer that is being written */
  const update = (turns, running = null) => {
    const items = turns.map((turn, index) => turnItem(turn, index, turns, { context, actions, answers, running }));
    if (running) items.push(h("li", { class: "turn turn-assistant" }, turnName("assistant"), running));
    replaceContent(element, items);
    element.hidden = !items.length;
  };
  return { element, answers, update, keep: (turn, answer) => answers.set(turn, answer), answerOf: (turn) => answers.get(turn) };
}

function turnName(role) {
  return h("p", { class: "turn-name" }, t(`play.role.${role === "user" || role === "system" ? role : "assistant"}`));
}

function turnItem(turn, index, turns, { context, actions, answers, running }) {
  const item = h("li", { class: `turn turn-${turn.role}` });
  const body = answers.get(turn) ?? foreignText(turn.content, "div", { class: "plain" });
  const tools = h("div", { class: "turn-tools" });
  const show = () => replaceContent(item, turnName(turn.role), body, tools);
  if (turn.role === "user") {
    tools.append(iconButton("edit", t("play.edit"), () => replaceContent(item, turnName("user"), editForm(turn, index, actions, show)).querySelector("textarea").focus()));
  }
  tools.append(iconButton("copy", t("play.copy"), async () => context.announce(t((await copyText(turn.content)) ? "play.copied" : "play.not.copied"))));
  if (turn.role === "assistant" && index === turns.length - 1 && !running) {
    tools.append(iconButton("retry", t("play.regenerate"), actions.regenerate));
  }
  show();
  return item;
}

function editForm(turn, index, actions, cancel) {
  const field = h("textarea", { class: "field", rows: 3, "aria-label": t("play.edit"), value: turn.content, dir: "auto" });
  const submit = (event) => {
    event?.preventDefault();
    if (field.value.trim() && !actions.isRunning()) actions.resend(index, field.value);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    if (event.key === "Escape") cancel();
  });
  return h(
    "form",
    { class: "edit-form", on: { submit } },
    field,
    h("div", { class: "button-row" }, h("button", { type: "submit", class: "button" }, icon("play"), t("play.resend")), h("button", { type: "button", class: "button", on: { click: cancel } }, t("play.cancel"))),
  );
}
