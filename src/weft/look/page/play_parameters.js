/**
 * The parameters of a mode with what they do in plain words, and the model's card.
 * @module play_parameters
 */

import { h, uniqueId } from "./dom.js";
import { hasText, t } from "./i18n.js";
import { factList } from "./inspector.js";
import { formatCount, formatSize } from "./numbers.js";
import { DEFAULT_MAX_TOKENS, PARAMETERS } from "./play_requests.js";

const RANGES = {
  temperature: { min: 0, step: 0.1 },
  top_p: { min: 0, max: 1, step: 0.05 },
  top_k: { min: 0, step: 1 },
  max_tokens: { min: 1, step: 1 },
  seed: { step: 1 },
  alternatives: { min: 0, max: 10, step: 1 },
};

/**
 * The form of a mode's parameters; null if it has none.
 * @param {string} mode
 * @param {import("./app.js").Context} context
 */
export function parameterForm(mode, context) {
  if (!PARAMETERS[mode].length) return null;
  return h(
    "section",
    { class: "inspector-section" },
    h("h2", {}, t("play.parameters")),
    PARAMETERS[mode].map((name) => parameterField(name, mode, context)),
  );
}

function parameterField(name, mode, { store, model }) {
  const id = uniqueId("parameter");
  const value = store.get()[name];
  const onChange = (event) => {
    const { value: text, valueAsNumber, validity } = event.target;
    if (text === "" || validity.valid) store.set({ [name]: text === "" ? null : valueAsNumber });
    event.target.setAttribute("aria-invalid", String(!validity.valid));
  };
  const attributes = { id, type: "number", class: "field number", "aria-describedby": `${id}-hint`, placeholder: String(defaultOf(name, mode, model)), value: value ?? "", on: { change: onChange } };
  const input = h("input", { ...RANGES[name], step: name === "temperature" || name === "top_p" ? "any" : RANGES[name].step, ...attributes });
  return h(
    "div",
    { class: "parameter" },
    h("label", { for: id }, t(`play.parameter.${name}`)),
    input,
    h("p", { class: "hint", id: `${id}-hint` }, t(`play.parameter.${name}.hint`)),
  );
}

/** What takes effect if a parameter is not set. */
function defaultOf(name, mode, model) {
  if (name === "max_tokens") return mode === "translation" ? t("play.automatic") : DEFAULT_MAX_TOKENS;
  if (name === "seed") return t("play.random");
  if (name === "alternatives") return 0;
  if (name === "temperature" && mode === "translation") return 0;
  return model.defaults?.[name] ?? "";
}

/** What is known about the model. @param {import("./app.js").Context} context */
export function modelCard({ store, model }) {
  const sizes = model.architecture ?? {};
  const facts = cardFacts(model, sizes).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h(
    "section",
    { class: "inspector-section" },
    h("h2", {}, h("bdi", {}, store.get().model)),
    facts.length ? factList(facts.map(([key, value]) => [t(`play.card.${key}`), String(value)])) : h("p", { class: "hint" }, t("play.card.unknown")),
  );
}

function cardFacts(model, sizes) {
  const layers = Array.isArray(sizes.layers) ? sizes.layers.join(" + ") : sizes.layers;
  const kind = model.kind && hasText(`play.kind.${model.kind}`) ? t(`play.kind.${model.kind}`) : model.kind;
  return [
    ["kind", kind],
    ["languages", model.languages?.join(" \u2192 ")],
    ["parameters", sizes.parameters && formatSize(sizes.parameters)],
    ["layers", layers],
    ["heads", sizes.heads],
    ["kv_heads", sizes.kv_heads],
    ["width", sizes.width && formatCount(sizes.width)],
    ["attention", sizes.attention && attentionName(sizes)],
    ["position", sizes.position],
    ["tokenizer", sizes.tokenizer && `${sizes.tokenizer}, ${formatCount(sizes.vocab_size)}`],
    ["context", model.max_model_len && formatCount(model.max_model_len)],
    ["dtype", sizes.dtype],
  ];
}

function attentionName(sizes) {
  const name = sizes.attention.toUpperCase();
  return sizes.pattern && sizes.pattern !== "full" ? `${name}, ${sizes.pattern}` : name;
}
