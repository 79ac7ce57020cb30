/**
 * A trace of one forward pass (schema weft.trace/1) -> stages and exact numbers.
 *
 *   inline(name)             the array if the trace carries it: {data: Float32Array, shape}
 *   array(name, {head, row})  a promise of it, fetched from the server if it is not inline
 *
 * Numbers are float32 as the model computed them; the page never shows a number it has not read.
 * A fetched part is kept, at most 200 of them. A file that was exported has no server: what is not
 * inline raises MissingArray there.
 * @module trace_reader
 */

const MAX_KEPT = 200;
const HEAD_AXES = ["head", "kv_head"];
const ROW_AXES = ["query", "token", "key"];

/** Raised where an array is neither in the trace nor on a server. */
export class MissingArray extends Error {}

/** float32 numbers in base64, little-endian as the server writes them. */
export function decodeFloat32(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** @typedef {{data: Float32Array, shape: number[]}} ExactArray */

export class TraceReader {
  /**
   * @param {Object} trace   the JSON answer of POST /look
   * @param {((path: string) => Promise<ExactArray>)|null} [readArray]  null: only what is inline
   */
  constructor(trace, readArray = null) {
    this.trace = trace;
    this.readArray = readArray;
    this.stages = new Map(trace.stages.map((stage) => [stage.name, stage]));
    this.decoded = new Map();
    this.fetched = new Map();
  }

  has(name) {
    return this.stages.has(name);
  }

  /** @returns {ExactArray | null} */
  inline(name) {
    if (!this.decoded.has(name)) {
      const array = this.trace.arrays[name];
      this.decoded.set(name, array ? { data: decodeFloat32(array.b64), shape: array.shape } : null);
    }
    return this.decoded.get(name);
  }

  /** @returns {Promise<ExactArray>} the array, or one head or row of it */
  async array(name, part = {}) {
    const whole = this.inline(name);
    if (whole) return partOf(whole, this.stages.get(name).axes, part);
    const query = new URLSearchParams({ name, ...part }).toString();
    if (!this.fetched.has(query)) this.keep(query, this.fetchArray(query));
    return this.fetched.get(query);
  }

  keep(query, promise) {
    if (this.fetched.size >= MAX_KEPT) this.fetched.delete(this.fetched.keys().next().value);
    this.fetched.set(query, promise);
    promise.catch(() => this.fetched.delete(query));
  }

  async fetchArray(query) {
    if (!this.readArray) throw new MissingArray(query);
    return this.readArray(`/look/${encodeURIComponent(this.trace.id)}/array?${query}`);
  }
}

/** The same selection as Trace.array of Python: one head, one row (query, token or key). */
export function partOf({ data, shape }, axes, { head, row }) {
  const wanted = axes.map(() => null);
  const choose = (names, index) => {
    const axis = axes.indexOf(names.find((name) => axes.includes(name)));
    if (axis >= 0 && index !== undefined) wanted[axis] = index;
  };
  choose(HEAD_AXES, head);
  choose(ROW_AXES, row);
  return wanted.reduceRight((array, index, axis) => (index === null ? array : take(array, axis, index)), { data, shape });
}

/** One index of an axis; the axis is dropped. */
function take({ data, shape }, axis, index) {
  const inner = sizeOf(shape.slice(axis + 1));
  const outer = sizeOf(shape.slice(0, axis));
  const rest = shape.filter((_, other) => other !== axis);
  const start = (block) => (block * shape[axis] + index) * inner;
  if (outer === 1) return { data: data.subarray(start(0), start(0) + inner), shape: rest };
  const taken = new Float32Array(outer * inner);
  for (let block = 0; block < outer; block += 1) {
    taken.set(data.subarray(start(block), start(block) + inner), block * inner);
  }
  return { data: taken, shape: rest };
}

function sizeOf(shape) {
  return shape.reduce((product, length) => product * length, 1);
}
