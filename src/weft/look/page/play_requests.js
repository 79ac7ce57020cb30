/**
 * What Play sends: the state of the page -> a request of a public route, and its stream -> parts.
 *
 *     chat /v1/chat/completions    completion /v1/completions
 *     translation /api/generate, alternatives /translate    embeddings /v1/embeddings
 * @module play_requests
 */

import { streamRequest } from "./api.js";

export const NUM_CANDIDATES = 5;
export const DEFAULT_MAX_TOKENS = 200;

/** Parameters of each mode, in the order of the form. */
export const PARAMETERS = {
  chat: ["temperature", "top_p", "top_k", "max_tokens", "seed"],
  completion: ["temperature", "top_p", "top_k", "max_tokens", "seed"],
  translation: ["alternatives", "temperature", "max_tokens", "seed"],
  embeddings: [],
};

/** The modes of a model, its first one first. @param {import("./app.js").ModelInfo} model */
export function modesOf(model) {
  if (model.kind === "encoder") return ["embeddings"];
  if (model.kind === "encoder-decoder") return ["translation", "embeddings"];
  if (model.can_chat || (!model.is_loaded && model.can_chat !== false)) return ["chat", "completion", "embeddings"];
  return ["completion", "embeddings"];
}

/** The lines of an input that are not blank: the texts of embeddings. @param {string} text */
export function textsOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/**
 * The request of a mode; `state.turns` is the conversation before `state.text`.
 * @param {string} mode
 * @param {import("./state.js").PageState} state
 * @returns {{path: string, body: Object}}
 */
export function playRequest(mode, state) {
  const { model, text } = state;
  if (mode === "embeddings") return { path: "/v1/embeddings", body: { model, input: textsOf(text) } };
  if (mode === "translation") return { path: "/api/generate", body: translationBody(state) };
  const common = { ...samplingFields(mode, state), max_tokens: state.max_tokens ?? DEFAULT_MAX_TOKENS, stream: true, stream_options: { include_usage: true } };
  if (mode === "completion") {
    return { path: "/v1/completions", body: { model, prompt: text, ...common, logprobs: NUM_CANDIDATES } };
  }
  return { path: "/v1/chat/completions", body: { model, messages: messagesOf(state), ...common, logprobs: true, top_logprobs: NUM_CANDIDATES } };
}

/** The messages of a chat: system prompt, turns, and the text that is being written. */
export function messagesOf(state) {
  const system = state.system.trim() ? [{ role: "system", content: state.system }] : [];
  const last = state.text ? [{ role: "user", content: state.text }] : [];
  return [...system, ...state.turns, ...last];
}

/** The sampling parameters that are set. */
export function samplingFields(mode, state) {
  const names = PARAMETERS[mode].filter((name) => name !== "max_tokens" && name !== "alternatives");
  return Object.fromEntries(names.filter((name) => state[name] !== null).map((name) => [name, state[name]]));
}

function translationBody(state) {
  const options = samplingFields("translation", state);
  if (state.max_tokens !== null) options.num_predict = state.max_tokens;
  return { model: state.model, prompt: state.text, stream: true, logprobs: true, top_logprobs: NUM_CANDIDATES, options };
}

/** The request of the alternatives of a translation. */
export function alternativesRequest(state) {
  return { path: "/translate", body: { model: state.model, q: state.text, alternatives: state.alternatives } };
}

/**
 * @typedef {Object} WrittenPiece  a token of an answer
 * @property {string} text
 * @property {number[]|null} bytes
 * @property {number} p            its probability
 * @property {Array<{text: string, bytes: number[]|null, p: number, chosen: boolean}>} top  candidates, most likely first
 */

/**
 * @typedef {Object} AnswerPart
 * @property {string} text
 * @property {string} reasoning
 * @property {WrittenPiece[]} pieces
 * @property {string|null} finish   stop or length, in the last part with text
 * @property {{prompt: number, completion: number, cached: number|null}|null} usage
 */

/** The parts of an answer as they arrive. @returns {AsyncGenerator<AnswerPart>} */
export async function* answerParts(mode, request, signal) {
  const read = { chat: chatPart, completion: completionPart, translation: translationPart }[mode];
  for await (const { data } of streamRequest(request.path, request.body, { signal })) yield read(data);
}

function chatPart(data) {
  const choice = data.choices?.[0];
  const delta = choice?.delta ?? {};
  const pieces = (choice?.logprobs?.content ?? []).map(chatPiece);
  return { text: delta.content ?? "", reasoning: delta.reasoning ?? "", pieces, finish: choice?.finish_reason ?? null, usage: openAiUsage(data.usage) };
}

function chatPiece(entry) {
  const top = (entry.top_logprobs ?? []).map((one) => ({ text: one.token, bytes: one.bytes, p: Math.exp(one.logprob) }));
  return writtenPiece(entry.token, entry.bytes, Math.exp(entry.logprob), top);
}

/** A piece whose candidates include it. */
function writtenPiece(text, bytes, p, top) {
  const marked = top.map((one) => ({ ...one, chosen: isSamePiece(one, { text, bytes }) }));
  if (!marked.some((one) => one.chosen)) marked.push({ text, bytes, p, chosen: true });
  return { text, bytes, p, top: marked.sort((one, other) => other.p - one.p) };
}

function isSamePiece(one, other) {
  return one.bytes && other.bytes ? String(one.bytes) === String(other.bytes) : one.text === other.text;
}

function completionPart(data) {
  const choice = data.choices?.[0];
  const lists = choice?.logprobs;
  const pieces = (lists?.tokens ?? []).map((text, index) => {
    const top = Object.entries(lists.top_logprobs?.[index] ?? {}).map(([name, logprob]) => ({ text: name, bytes: null, p: Math.exp(logprob) }));
    return writtenPiece(text, lists.bytes?.[index] ?? null, Math.exp(lists.token_logprobs[index]), top);
  });
  return { text: choice?.text ?? "", reasoning: "", pieces, finish: choice?.finish_reason ?? null, usage: openAiUsage(data.usage) };
}

function openAiUsage(usage) {
  if (!usage) return null;
  return { prompt: usage.prompt_tokens, completion: usage.completion_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? null };
}

function translationPart(data) {
  const usage = data.done ? { prompt: data.prompt_eval_count, completion: data.eval_count, cached: null } : null;
  return { text: data.response ?? "", reasoning: "", pieces: (data.logprobs ?? []).map(chatPiece), finish: data.done ? data.done_reason : null, usage };
}
