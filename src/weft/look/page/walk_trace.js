/**
 * What the panels of Walk ask of a trace: parts, tokens and words of a side, rows of weights; and
 * the one selection of the page, made valid for this trace.
 *
 * Sides: "src" are the tokens of the text, "tgt" those that the decoder of an encoder-decoder reads.
 * Parts with attention: encoder, decoder, and cross (queries tgt, keys src).
 * @module walk_trace
 */

import { pieceLabel } from "./tokens.js";
import { TraceReader } from "./trace_reader.js";

export class WalkTrace extends TraceReader {
  constructor(trace, readArray = null) {
    super(trace, readArray);
    this.model = trace.model;
    this.isTranslator = trace.model.kind === "encoder-decoder";
    this.words = Object.fromEntries(Object.entries(trace.words).map(([side, words]) => [side, [...words]]));
  }

  /** Number of layers by stack. @returns {Object<string, number>} */
  get stacks() {
    const names = this.isTranslator ? ["encoder", "decoder"] : [this.model.kind];
    return Object.fromEntries(names.map((name, i) => [name, this.model.layers[i]]));
  }

  /** Number of layers by part with attention. @returns {Object<string, number>} */
  get parts() {
    return this.isTranslator ? { ...this.stacks, cross: this.model.layers[1] } : this.stacks;
  }

  /** The stack that predicts tokens, or null. */
  get headStack() {
    return Object.keys(this.stacks).find((stack) => this.has(`${stack}.logits`)) ?? null;
  }

  prefixOf(part, layer) {
    return part === "cross" ? `decoder.${layer}.cross` : `${part}.${layer}.attention`;
  }

  /** "src" or "tgt": of the queries, or of the keys. */
  sideOf(part, axis = "query") {
    if (!this.isTranslator || part === "encoder") return "src";
    return part === "cross" && axis === "key" ? "src" : "tgt";
  }

  tokensOf(part, axis = "query") {
    return this.trace.tokens[this.sideOf(part, axis)] ?? [];
  }

  wordsOf(part, axis = "query") {
    return this.words[this.sideOf(part, axis)] ?? [];
  }

  /** Whether all weights are in the trace: short texts. */
  get hasAllWeights() {
    const [part] = Object.keys(this.parts);
    return this.inline(`${this.prefixOf(part, 0)}.weights`) !== null;
  }

  /** @returns {import("./trace_reader.js").ExactArray | null} [head, query, key] of a layer */
  weightsNow(part, layer) {
    return this.inline(`${this.prefixOf(part, layer)}.weights`);
  }

  /** Block means of the weights of a long text, [head, rows, columns]. */
  overviewOf(part, layer) {
    return this.inline(`mean(${this.prefixOf(part, layer)}.weights)`);
  }

  /** The exact weights of one query: [key]. Those of all heads are asked for at once, since the
   * panel of the heads needs them too. */
  async weightsRow({ part, layer, head, token }) {
    const { data, shape } = await this.array(`${this.prefixOf(part, layer)}.weights`, { row: token });
    const keys = shape[1];
    return { data: data.subarray(head * keys, (head + 1) * keys), shape: [keys] };
  }

  /** The mask of one query as a function of the key; a stage that is missing masks nothing. */
  async maskRow({ part, layer, token }) {
    const name = `${this.prefixOf(part, layer)}.mask`;
    if (!this.has(name)) return () => true;
    const row = await this.array(name, { row: token });
    return (key) => row.data[key] > 0;
  }

  /** The key/value head that a query head reads. */
  kvHead(head) {
    const kvHeads = this.stages.get(`${this.prefixOf(Object.keys(this.parts)[0], 0)}.k`)?.shape[0] ?? this.model.kv_heads;
    return Math.floor(head / (this.model.heads / kvHeads));
  }
}

/** A token as it is shown in a sentence. */
export function labelOf(token) {
  return token === undefined ? "" : pieceLabel(token);
}

/**
 * @typedef {{part: string, layer: number, head: number, token: number, key: number}} WalkSelection
 *   token: the query; key: the token that it reads
 */

/** The state's selection where this trace has it, and the trace's default where it does not. */
export function selectionOf(trace, state) {
  const parts = trace.parts;
  const part = state.stack in parts ? state.stack : Object.keys(parts)[0];
  const queries = trace.tokensOf(part);
  const keys = trace.tokensOf(part, "key");
  const token = isIndex(state.token, queries.length) ? state.token : defaultToken(queries);
  const isHeadSet = isIndex(state.layer, parts[part]) && isIndex(state.head, trace.model.heads);
  const sharpest = isHeadSet ? null : sharpestHead(trace, part, token);
  const layer = isIndex(state.layer, parts[part]) ? state.layer : sharpest.layer;
  const head = isIndex(state.head, trace.model.heads) ? state.head : sharpest.head;
  const chosen = { part, layer, head, token };
  return { ...chosen, key: isIndex(state.key, keys.length) ? state.key : strongestKey(trace, chosen) };
}

function isIndex(value, length) {
  return Number.isInteger(value) && value >= 0 && value < length;
}

/** The last token that is text. */
function defaultToken(tokens) {
  const last = tokens.findLastIndex((token) => !token.is_special && /[\p{L}\p{N}]/u.test(token.text));
  return last < 0 ? Math.max(0, tokens.length - 1) : last;
}

/**
 * The head with the largest weight on a token of the text, as sharpest_head of Python: within one
 * text without the token itself and the first one, on which many heads rest.
 */
function sharpestHead(trace, part, token) {
  let best = { layer: 0, head: 0, weight: -1 };
  const tokens = trace.tokensOf(part, "key");
  const isOther = (key) => !tokens[key].is_special && (part === "cross" || (key !== token && key !== 0));
  const hasOther = tokens.some((_, key) => isOther(key));
  const counts = hasOther ? isOther : (key) => key === 0;
  for (let layer = 0; layer < trace.parts[part]; layer += 1) {
    const weights = trace.weightsNow(part, layer);
    if (!weights) break;
    const [heads, queries, keys] = weights.shape;
    for (let head = 0; head < heads; head += 1) {
      const start = (head * queries + token) * keys;
      for (let key = 0; key < keys; key += 1) {
        const weight = weights.data[start + key];
        if (weight > best.weight && counts(key)) best = { layer, head, weight };
      }
    }
  }
  return best;
}

function strongestKey(trace, { part, layer, head, token }) {
  const weights = trace.weightsNow(part, layer);
  if (!weights) return Math.max(0, part === "cross" ? 0 : token);
  const keys = weights.shape[2];
  const start = (head * weights.shape[1] + token) * keys;
  let best = 0;
  for (let key = 1; key < keys; key += 1) if (weights.data[start + key] > weights.data[start + best]) best = key;
  return best;
}
