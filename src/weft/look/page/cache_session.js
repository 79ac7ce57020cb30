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
 * @property {(prompts: Object) => Promise<Object>} why     why the second prompt did not share the first one's pages
 * @property {() => Promise<ScratchSession>} again  a new engine after the same requests and steps
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
  const actions = [];
  session.submit = async (request) => {
    const answer = receive(await postJson(`${path}/submit`, request));
    actions.push((other) => other.submit(request));
    return answer.name;
  };
  session.step = async (count) => {
    const { steps } = receive(await postJson(`${path}/step`, { count }));
    if (steps.length) actions.push((other) => other.step(steps.length));
  };
  session.why = (prompts) => postJson(`${path}/why`, prompts);
  session.again = async () => {
    const other = await openScratch(settings);
    for (const act of actions) await act(other);
    return other;
  };
  let isOpen = true;
  session.close = () => {
    if (isOpen) sendDelete(path).catch(() => {});
    isOpen = false;
  };
  return session;
}

/** Whether an error says that the server has dropped the scratch engine. @param {unknown} error */
export function isScratchGone(error) {
  return error instanceof RequestError && error.status === 404 && error.code === EXPIRED;
}

/**
 * What each request had written at a moment: the tokens of complete steps.
 * @param {ScratchSession} session
 * @param {number} moment
 * @returns {Array<{name: string, beam: number, prompt: number[], cached: number|null, outputs: number[][], finish: string|null, state: string}>}
 */
export function requestsAt({ history, snapshot }, moment) {
  if (moment === history.length()) return snapshot.requests.map(lastForm);
  const past = history.steps.slice(0, history.completeAt(moment));
  const arrived = new Set(history.steps.slice(0, history.stepsAt(moment)).flatMap((step) => step.arrived));
  const ops = history.opsUntil(moment);
  return snapshot.requests.filter((one) => arrived.has(one.name)).map((one) => pastForm(one, past, ops));
}

function lastForm(one) {
  const running = one.sequences.map((sequence) => sequence.tokens);
  return { ...one, cached: one.num_cached, outputs: one.outputs.length ? one.outputs : running };
}

/** The hypotheses of a beam search after each complete step, and its results once it has ended.
 * @param {ScratchSession} session @param {{name: string, finish: string|null, outputs: number[][]}} one */
export function beamsAt({ history }, one, moment) {
  const past = history.steps.slice(0, history.completeAt(moment));
  const lists = past.map((step) => step.beams[one.name]).filter(Boolean);
  return one.finish ? [...lists, one.outputs] : lists;
}

/** The newest token of a request then, with alternatives; undefined without one. */
export function lastTokenAt({ history }, name, moment) {
  const past = history.steps.slice(0, history.completeAt(moment));
  return past.flatMap((step) => step.tokens).findLast((token) => token.request === name && token.logprob !== null);
}

/** A request is admitted once it holds a page. */
function pastForm(one, past, ops) {
  const outputs = [];
  for (const token of past.flatMap((step) => step.tokens)) {
    if (token.request === one.name) (outputs[token.index] ??= []).push(token.id);
  }
  const isFinished = past.some((step) => step.finished.includes(one.name));
  const isAdmitted = ops.some((op) => op.owner?.startsWith(`${one.name}/`));
  const lastLoss = past.findLastIndex((step) => step.preempted.includes(one.name));
  const lastToken = past.findLastIndex((step) => step.tokens.some((token) => token.request === one.name));
  return {
    name: one.name,
    beam: one.beam,
    prompt: one.prompt,
    cached: isAdmitted ? one.num_cached : null,
    outputs: isFinished ? one.outputs : [...outputs].map((ids) => ids ?? []),
    finish: isFinished ? one.finish : null,
    state: isAdmitted && lastLoss <= lastToken ? "running" : "waiting",
  };
}
