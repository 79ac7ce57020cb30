/**
 * The request of the moment as a line for the shell, for the program `weft` or for Python.
 * @module play_code
 */

import { h, replaceContent } from "./dom.js";
import { iconButton } from "./icons.js";
import { t } from "./i18n.js";
import { DEFAULT_MAX_TOKENS, alternativesRequest, messagesOf, playRequest, samplingFields, textsOf } from "./play_requests.js";

const KINDS = ["curl", "CLI", "Python"];

/** Copy a text; true if the browser allows it. @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** For pages that are not served by https or from this machine. */
function copyBySelection(text) {
  const field = h("textarea", { class: "visually-hidden", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

/**
 * @param {import("./app.js").Context} context
 * @param {() => {mode: string, state: import("./state.js").PageState}} current
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createCodeSection(context, current) {
  let kind = KINDS[0];
  const code = h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": t("play.code") });
  const buttons = KINDS.map((name) => h("button", { type: "button", class: "tab", on: { click: () => choose(name) } }, name));
  const update = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(KINDS[index] === kind)));
    replaceContent(code, codeText(kind, context, current()));
  };
  const choose = (name) => {
    kind = name;
    update();
  };
  const copy = iconButton("copy", t("play.copy"), async () => context.announce(t((await copyText(code.textContent)) ? "play.copied" : "play.not.copied")));
  const link = iconButton("link", t("play.permalink"), async () => context.announce(t((await copyText(location.href)) ? "play.copied" : "play.not.copied")));
  const element = h(
    "section",
    { class: "inspector-section" },
    h("h2", {}, t("play.code")),
    h("div", { class: "code-row" }, h("div", { class: "tabs", role: "group", "aria-label": t("play.code") }, buttons), copy, link),
    code,
  );
  update();
  return { element, update };
}

/** @param {string} kind @param {import("./app.js").Context} context */
export function codeText(kind, context, { mode, state: shown }) {
  const state = mode === "chat" ? askedState(shown) : shown;
  if (kind === "curl") return curlText(context, mode, state);
  const path = context.model.path ?? state.model;
  return kind === "CLI" ? commandText(path, mode, state) : pythonText(path, mode, state);
}

/** While no message is being written: the conversation up to the last question, without its answer. */
function askedState(state) {
  const isAnswered = !state.text && state.turns.at(-1)?.role === "assistant";
  return isAnswered ? { ...state, turns: state.turns.slice(0, -1) } : state;
}

/** A word for a POSIX shell. @param {string} text */
export function shellQuoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function curlText(context, mode, state) {
  const { path, body } = mode === "translation" && state.alternatives ? alternativesRequest(state) : playRequest(mode, state);
  const key = context.server.has_api_keys ? [`-H "Authorization: Bearer $WEFT_API_KEY"`] : [];
  const parts = [`curl ${body.stream ? "-N " : ""}${location.origin}${path}`, ...key, `-H 'Content-Type: application/json'`, `-d ${shellQuoted(JSON.stringify(body, null, 2))}`];
  return parts.join(" \\\n  ");
}

function commandText(path, mode, state) {
  const model = shellQuoted(path);
  const options = optionWords(mode, state);
  const input = (text) => `printf '%s\\n' ${shellQuoted(text)} | `;
  if (mode === "completion") return `weft generate ${[model, ...options].join(" ")} -- ${shellQuoted(state.text)}`;
  if (mode === "chat") {
    const system = state.system.trim() ? ["--system", shellQuoted(state.system)] : [];
    return `${input(messagesOf({ ...state, system: "" }).at(-1)?.content ?? "")}weft chat ${[model, ...system, ...options].join(" ")}`;
  }
  if (mode === "translation") return `${input(state.text)}weft translate ${[model, ...options].join(" ")}`;
  return `${input(textsOf(state.text).join("\n"))}weft embed ${model} --json`;
}

function optionWords(mode, state) {
  const words = Object.entries(samplingFields(mode, state)).flatMap(([name, value]) => [`--${name.replace("_", "-")}`, String(value)]);
  if (mode === "translation" && state.alternatives) words.push("--beam", String(state.alternatives + 1), "--n-best", String(state.alternatives + 1));
  if (mode !== "translation") words.push("--max-tokens", String(state.max_tokens ?? DEFAULT_MAX_TOKENS));
  else if (state.max_tokens !== null) words.push("--max-tokens", String(state.max_tokens));
  return words;
}

function pythonText(path, mode, state) {
  const head = `import weft\n\nm = weft.load(${JSON.stringify(path)})\n`;
  const sampling = Object.entries(samplingFields(mode, state)).map(([name, value]) => `, ${name}=${value}`).join("");
  const limit = mode === "translation" ? "" : `, max_tokens=${state.max_tokens ?? DEFAULT_MAX_TOKENS}`;
  const text = JSON.stringify(state.text);
  if (mode === "completion") return `${head}print(m.generate(${text}${limit}${sampling}))`;
  if (mode === "chat") return `${head}messages = ${JSON.stringify(messagesOf(state), null, 4)}\nfor piece in m.chat(messages${limit}${sampling}):\n    print(piece, end="")`;
  if (mode === "embeddings") return `${head}vectors = m.embed(${JSON.stringify(textsOf(state.text), null, 4)})\nprint(vectors @ vectors.T)`;
  if (state.alternatives) return `${head}for best in m.translate_best([${text}], ${state.alternatives + 1}, beam=${state.alternatives + 1}):\n    print(best)`;
  return `${head}print(m.translate([${text}]${sampling}))`;
}
