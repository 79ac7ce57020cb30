/**
 * The timeline: a slider over all operations so far, one operation or one step back or forth, play.
 * Going beyond the end runs the engine. Play never starts by itself.
 * @module cache_timeline
 */

import { h, replaceContent, uniqueId } from "./dom.js";
import { t } from "./i18n.js";
import { ownerName } from "./cache_names.js";

const PLAY_MS = 500;
const MANY_STEPS = 64;

/**
 * @param {{onMoment: (moment: number) => void, onStep: (count: number) => Promise<void>}} options
 */
export function createTimeline({ onMoment, onStep }) {
  const line = { history: null, isIdle: true, moment: 0, timer: null };
  const slider = h("input", { id: uniqueId("timeline"), type: "range", min: 0, max: 0, value: 0, class: "timeline-slider" });
  const words = h("p", { class: "timeline-words", role: "status" });
  slider.addEventListener("input", () => onMoment(Number(slider.value)));
  const button = (key, act) => h("button", { type: "button", class: "button", on: { click: act } }, t(key));
  const move = (direction) => moveStep(line, direction, onMoment, onStep);
  const back = button("cache.back", () => move(-1));
  const forward = button("cache.step", () => move(1));
  const play = button("cache.play", () => (line.timer ? stop() : start()));
  const end = button("cache.end", () => (line.isIdle ? onMoment(line.history.length()) : onStep(MANY_STEPS)));
  const stop = () => {
    clearTimeout(line.timer);
    line.timer = null;
    replaceContent(play, t("cache.play"));
  };
  const start = () => {
    replaceContent(play, t("cache.pause"));
    playOn(line, () => move(1), stop);
  };
  const show = (moment) => {
    line.moment = moment;
    replaceContent(words, momentWords(line));
    showPlace(line, slider, words.textContent);
    back.disabled = moment === 0;
    for (const control of [forward, play, end]) control.disabled = isAtLastMoment(line);
  };
  const clear = () => {
    stop();
    line.history = null;
    for (const control of [slider, back, forward, play, end]) control.disabled = true;
  };
  const row = h("div", { class: "button-row" }, back, forward, play, end);
  const element = h("div", { class: "timeline" }, h("label", { for: slider.id }, t("cache.timeline")), slider, words, row);
  const keys = { n: forward, " ": play };
  const onKey = (key) => line.history !== null && key in keys && pressed(keys[key]);
  return { element, show, setHistory: (history, isIdle) => Object.assign(line, { history, isIdle }), stop, clear, onKey };
}

/** Press a button by a key; whether it could be. */
function pressed(button) {
  if (button.disabled) return false;
  button.click();
  return true;
}

function showPlace({ history, moment }, slider, words) {
  slider.disabled = false;
  slider.max = String(history.length());
  slider.value = String(moment);
  slider.setAttribute("aria-valuetext", words);
}

/** Call `next` every half second until the end, or until it is stopped. */
function playOn(line, next, stop) {
  const tick = async () => {
    if (isAtLastMoment(line)) return stop();
    await next();
    if (line.timer) line.timer = setTimeout(tick, PLAY_MS);
  };
  line.timer = setTimeout(tick, 0);
}

function isAtLastMoment(line) {
  return !line.history || (line.moment >= line.history.length() && line.isIdle);
}

/** To the end of the next or the previous step; the engine runs if there is no next one yet. */
async function moveStep(line, direction, onMoment, onStep) {
  const { history, moment } = line;
  if (direction > 0 && moment >= history.length()) return onStep(1);
  onMoment(history.nextEnd(moment, direction));
}

/** "step 3 of 12, event 40 of 96: page 5 is allocated for request a" */
function momentWords(line) {
  const { history, moment } = line;
  if (!history.length()) return t("cache.moment.none");
  const values = { step: history.stepsAt(moment), steps: history.steps.length, event: moment, events: history.length() };
  const place = t("cache.moment", values);
  const op = history.opAt(moment);
  return op ? `${place}: ${opWords(op)}` : place;
}

/** An operation in words. @param {Object} op */
export function opWords(op) {
  const owner = op.owner === undefined ? "" : ownerName(op.owner);
  return t(`cache.op.${op.op}`, { page: op.page ?? "", node: op.node ?? "", from: op.from ?? "", rows: op.rows ?? "", parent: op.parent ?? "–", n: op.num_tokens ?? "", blocks: op.num_blocks ?? "", locks: op.locks ?? "", owner });
}
