/**
 * Statistics of all heads of a part for one query, and heads ranked by how much one word reads
 * another, with the mean of all heads and attention rollout beside them.
 * @module walk_find
 */

import { entropyOf } from "./walk_math.js";

/** Rows of all heads of a part for one query: one [head, key] array per layer. */
function rowsOfQuery(trace, part, token) {
  const layers = Array.from({ length: trace.parts[part] }, (_, layer) => layer);
  return Promise.all(layers.map((layer) => trace.array(`${trace.prefixOf(part, layer)}.weights`, { row: token })));
}

/**
 * Entropy, weight on the chosen key and mean distance of each head. A long text gives only those of
 * the chosen layer, since each layer is a request.
 */
export async function headStatistics(trace, { part, layer, token, key }) {
  const layers = trace.hasAllWeights ? Array.from({ length: trace.parts[part] }, (_, i) => i) : [layer];
  const all = await Promise.all(layers.map((one) => trace.array(`${trace.prefixOf(part, one)}.weights`, { row: token })));
  return all.flatMap(({ data, shape: [heads, keys] }, place) =>
    Array.from({ length: heads }, (_, head) => {
      const row = data.subarray(head * keys, (head + 1) * keys);
      const distance = row.reduce((sum, weight, at) => sum + weight * Math.abs(token - at), 0);
      return { part, layer: layers[place], head, entropy: entropyOf(row), pair: row[key], distance };
    }),
  );
}

/** Weights of the words: of a row of weights by token. */
function weightsOfWords(row, words) {
  return words.map((word) => word.tokens.reduce((sum, token) => sum + row[token], 0));
}

function placeOf(row, words, key) {
  const weights = weightsOfWords(row, words);
  const weight = weights[words.indexOf(key)];
  return { weight, rank: weights.filter((other) => other > weight).length };
}

/** The mean of some rows. */
function meanRow(rows) {
  const mean = new Float64Array(rows[0].length);
  for (const row of rows) row.forEach((value, i) => { mean[i] += value / rows.length; });
  return mean;
}

/**
 * All heads, those that give a word the largest weight first; averaged over the tokens of the query.
 * @returns {Promise<{heads: Array<Object>, mean: Object, rollout: Object|null}>}
 */
export async function rankedHeads(trace, part, query, key) {
  const words = trace.wordsOf(part, "key");
  const perToken = await Promise.all(query.tokens.map((token) => rowsOfQuery(trace, part, token)));
  const rows = perToken[0].flatMap(({ shape: [heads, keys] }, layer) =>
    Array.from({ length: heads }, (_, head) => ({
      part, layer, head, row: meanRow(perToken.map((layers) => layers[layer].data.subarray(head * keys, (head + 1) * keys))),
    })),
  );
  const heads = rows.map(({ row, ...name }) => ({ ...name, ...placeOf(row, words, key) }));
  heads.sort((a, b) => b.weight - a.weight || a.layer - b.layer || a.head - b.head);
  const mean = placeOf(meanRow(rows.map(({ row }) => row)), words, key);
  return { heads, mean, rollout: await rolloutPlace(trace, part, query, words, key) };
}

async function rolloutPlace(trace, part, query, words, key) {
  const name = `${part}.rollout`;
  if (part === "cross" || !trace.has(name) || !trace.inline(name)) return null;
  const rows = await Promise.all(query.tokens.map((token) => trace.array(name, { row: token })));
  return placeOf(meanRow(rows.map((one) => one.data)), words, key);
}
