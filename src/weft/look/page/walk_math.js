/**
 * Arithmetic of the Walk view: pure functions over arrays of numbers, without the page.
 *
 * The page computes only what depends on a choice of the reader (a word, a temperature); everything
 * else is read from the trace. The results equal those of weft.look and weft.sampling.
 * @module walk_math
 */

/** softmax in float64; -Infinity gets the probability 0. */
export function softmax(logits) {
  let top = -Infinity;
  for (const logit of logits) if (logit > top) top = logit;
  const exps = Float64Array.from(logits, (logit) => Math.exp(logit - top));
  let total = 0;
  for (const value of exps) total += value;
  return exps.map((value) => value / total);
}

/** Entropy of a row of weights, in bits. */
export function entropyOf(row) {
  let bits = 0;
  for (const weight of row) if (weight > 0) bits -= weight * Math.log2(weight);
  return bits;
}

/** All ids, the most likely first; ties by id. The order is the same at every temperature. */
export function sortedIds(logits) {
  return Uint32Array.from(logits, (_, id) => id).sort((a, b) => logits[b] - logits[a] || a - b);
}

/**
 * Sampling settings applied to stored logits, in the order of weft.sampling: temperature, top-k,
 * top-p, min-p, each on what the one before has left.
 * @param {ArrayLike<number>} logits
 * @param {Uint32Array} order  of sortedIds; the first `kept` of them can be drawn
 * @returns {{order: Uint32Array, probabilities: Float64Array, kept: number}}
 */
export function applySampling(logits, order, { temperature = 1, topK = 0, topP = 1, minP = 0 }) {
  const probabilities = new Float64Array(logits.length);
  if (temperature === 0) {
    probabilities[order[0]] = 1;
    return { order, probabilities, kept: 1 };
  }
  const sorted = Float64Array.from(order, (id) => logits[id] / temperature);
  let kept = countTopK(sorted, topK);
  if (topP < 1) kept = countTopP(softmax(sorted.subarray(0, kept)), topP);
  if (minP > 0) kept = countWhile(kept, (place) => sorted[place] >= sorted[0] + Math.log(minP));
  softmax(sorted.subarray(0, kept)).forEach((p, place) => { probabilities[order[place]] = p; });
  return { order, probabilities, kept };
}

function countWhile(limit, isKept) {
  let count = 0;
  while (count < limit && isKept(count)) count += 1;
  return count;
}

function countTopK(sorted, topK) {
  if (topK === 0 || topK >= sorted.length) return sorted.length;
  return countWhile(sorted.length, (place) => sorted[place] >= sorted[topK - 1]); // ties are kept
}

function countTopP(p, topP) {
  let before = 0;
  return countWhile(p.length, (place) => {
    const isKept = place === 0 || before < topP;
    before += p[place];
    return isKept;
  });
}

/** The id at which the cumulative probability, in order of ids, passes u. */
export function drawFrom(probabilities, u) {
  let mass = 0;
  let last = 0;
  for (let id = 0; id < probabilities.length; id += 1) {
    if (probabilities[id] === 0) continue;
    mass += probabilities[id];
    last = id;
    if (mass > u) return id;
  }
  return last;
}

const MASK_64 = (1n << 64n) - 1n;

/** The random number of a position of a request with this seed (splitmix64), as weft.sampling. */
export function uniformOf(seed, position) {
  let state = (BigInt(seed) * 0x9e3779b97f4a7c15n + BigInt(position + 1) * 0xd1b54a32d192ed03n) & MASK_64;
  state = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK_64;
  state = ((state ^ (state >> 27n)) * 0x94d049bb133111ebn) & MASK_64;
  return Number((state ^ (state >> 31n)) >> 11n) / 2 ** 53;
}

/** Whether a mask pattern lets a query read a key. */
export function patternAllows(pattern, size, query, key) {
  const distance = Math.abs(query - key);
  if (pattern === "window") return distance < size;
  if (pattern === "strided") return distance < size || distance % size === 0;
  return true;
}

/** The values of all keys, [key, dim], added with weights. */
export function weightedSum(weights, { data, shape }) {
  const size = shape.at(-1);
  const sum = new Float64Array(size);
  weights.forEach((weight, key) => {
    for (let i = 0; i < size; i += 1) sum[i] += weight * data[key * size + i];
  });
  return sum;
}

/**
 * Attention of one query, a tile of keys at a time, with a running maximum and sum (Milakov 2018):
 * after all tiles the output is that of softmax over all keys.
 */
export function onlineSoftmax(scores, values, tile, steps) {
  const size = values.shape.at(-1);
  let output = new Float64Array(size);
  let [max, sum] = [-Infinity, 0];
  for (let key = 0; key < Math.min(scores.length, tile * steps); key += 1) {
    if (scores[key] === -Infinity) continue;
    const next = Math.max(max, scores[key]);
    const [keep, add] = [Math.exp(max - next), Math.exp(scores[key] - next)];
    output = output.map((value, i) => value * keep + add * values.data[key * size + i]);
    sum = sum * keep + add;
    max = next;
  }
  return { output: output.map((value) => value / (sum || 1)), max, sum };
}
