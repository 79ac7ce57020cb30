/**
 * The past of a cache: a first snapshot and all operations since then, in steps. Any moment between
 * two operations can be asked for; a copy of the state is kept every few operations, so that going
 * back replays few.
 * @module cache_history
 */

import { applyCacheOp, cacheStateJson, createCacheState } from "./cache_state.js";

const COPY_EVERY = 64;

/**
 * @typedef {Object} CacheStep   one engine step, as the server sends it
 * @property {number} step
 * @property {Object[]} ops      operations of events.py
 * @property {string[]} arrived    requests that were submitted before it
 * @property {string[]} preempted  requests that lost their pages and wait again
 * @property {number} evicted      pages that were evicted
 * @property {Object<string, number[][]>} beams  hypotheses of the beam searches that go on
 * @property {Array<{request: string, index: number, id: number, logprob: number|null, top: Array<{id: number, p: number}>}>} tokens
 */

/**
 * @typedef {Object} CacheHistory
 * @property {CacheStep[]} steps
 * @property {() => number} length               number of operations
 * @property {(step: CacheStep) => void} add
 * @property {(moment: number) => import("./cache_state.js").CacheState} stateAt  after so many operations
 * @property {(moment: number) => Object[]} opsUntil
 * @property {(moment: number) => Object|null} opAt  the operation that led to a moment; null at 0
 * @property {(moment: number) => number} completeAt  how many steps are complete then
 * @property {(moment: number) => number} stepsAt  how many have begun
 * @property {(moment: number, direction: number) => number} nextEnd  the next, or previous, end of a step
 */

/** @param {{pages: Object[], nodes: Object[]}} snapshot @returns {CacheHistory} */
export function createCacheHistory(snapshot) {
  const steps = [];
  const ends = [0];
  const ops = [];
  const copies = [cacheStateJson(createCacheState(snapshot))];
  const last = createCacheState(snapshot);
  const add = (step) => {
    steps.push(step);
    for (const op of step.ops) {
      applyCacheOp(last, op);
      ops.push(op);
      if (ops.length % COPY_EVERY === 0) copies.push(cacheStateJson(last));
    }
    ends.push(ops.length);
  };
  const stateAt = (moment) => {
    const place = Math.min(Math.floor(moment / COPY_EVERY), copies.length - 1);
    const state = createCacheState(copies[place]);
    for (const op of ops.slice(place * COPY_EVERY, moment)) applyCacheOp(state, op);
    return state;
  };
  const completeAt = (moment) => ends.findLastIndex((end) => end <= moment); // a step may have no operations
  return {
    steps,
    add,
    stateAt,
    length: () => ops.length,
    opsUntil: (moment) => ops.slice(0, moment),
    opAt: (moment) => ops[moment - 1] ?? null,
    completeAt,
    stepsAt: (moment) => completeAt(moment) + (ends.includes(moment) ? 0 : 1),
    nextEnd: (moment, direction) => (direction > 0 ? ends.find((end) => end > moment) : ends.findLast((end) => end < moment)) ?? moment,
  };
}
