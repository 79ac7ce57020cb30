/**
 * A scratch engine on the server: a small pool of pages on the weights of the model, stepped by the
 * page. Keeps its history, its requests and the texts of tokens.
 * @module cache_session
 */

import { RequestError, postJson, sendDelete } from "./api.js";
import { createCacheHistory } from "./cache_history.js";

const EXPIRED = "scratch_expired";

/**
 * @typedef {Object} ScratchSession
 * @property {import("./cache_history.js").CacheHistory} history
 * @property {Object} snapshot  after the last step: numbers of pages, requests
 * @property {Object<string, {text: string, bytes: string}>} texts  by token id
 * @property {(request: Object) => Promise<string>} submit  the name of the request
 * @property {(count: number) => Promise<void>} step        so many steps, fewer if it is idle then
 * @property {() => void} close
 */

/**
 * @param {Object} settings  model, num_pages, page_size; `scenario`: a text for the scripted requests
 * @returns {Promise<ScratchSession>}
 */
export async function openScratch(settings) {
  const first = await postJson("/look/scratch", settings);
  const path = `/look/scratch/${encodeURIComponent(first.id)}`;
  const session = { history: createCacheHistory(first.snapshot), snapshot: first.snapshot, texts: { ...first.texts } };
  const receive = (answer) => {
    Object.assign(session.texts, answer.texts);
    for (const step of answer.steps ?? []) session.history.add(step);
    session.snapshot = answer.snapshot;
    return answer;
  };
  session.submit = async (request) => receive(await postJson(`${path}/submit`, request)).name;
  session.step = async (count) => {
    receive(await postJson(`${path}/step`, { count }));
  };
  session.close = () => {
    sendDelete(path).catch(() => {});
  };
  return session;
}

/** Whether an error says that the server has dropped the scratch engine. @param {unknown} error */
export function isScratchGone(error) {
  return error instanceof RequestError && error.status === 404 && error.code === EXPIRED;
}

/**
 * What each request had written after so many steps.
 * @param {ScratchSession} session
 * @param {number} steps
 * @returns {Array<{name: string, prompt: number[], cached: number|null, outputs: number[][], finish: string|null, state: string}>}
 */
export function requestsAfter(session, steps) {
  const past = session.history.steps.slice(0, steps);
  const isLast = steps === session.history.steps.length;
  const arrived = new Set(past.flatMap((step) => step.arrived));
  return session.snapshot.requests
    .filter((one) => isLast || arrived.has(one.name))
    .map((one) => (isLast ? lastForm(one) : pastForm(one, past)));
}

function lastForm(one) {
  const running = one.sequences.map((sequence) => sequence.tokens);
  return { ...one, cached: one.num_cached, outputs: one.outputs.length ? one.outputs : running };
}

function pastForm(one, past) {
  const outputs = [];
  for (const token of past.flatMap((step) => step.tokens)) {
    if (token.request === one.name) (outputs[token.index] ??= []).push(token.id);
  }
  const written = outputs.reduce((sum, ids) => sum + (ids?.length ?? 0), 0);
  const isComplete = one.finish !== null && written === one.outputs.reduce((sum, ids) => sum + ids.length, 0);
  const lastLoss = past.findLastIndex((step) => step.preempted.includes(one.name));
  const lastToken = past.findLastIndex((step) => step.tokens.some((token) => token.request === one.name));
  const state = lastLoss > lastToken ? "waiting" : "running";
  return { name: one.name, prompt: one.prompt, cached: one.num_cached, outputs: [...outputs].map((ids) => ids ?? []), finish: isComplete ? one.finish : null, state };
}
