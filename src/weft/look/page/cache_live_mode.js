/**
 * Watching the serving engine: opens the stream, draws at most four times a second, and follows the
 * newest moment until the reader goes back in time.
 * @module cache_live_mode
 */

import { openLive } from "./cache_live.js";
import { h, replaceContent } from "./dom.js";
import { t } from "./i18n.js";
import { errorState, loadingState } from "./states.js";

const DRAW_MS = 250;

/**
 * @param {{model: () => string, status: HTMLElement, onStart: (session: import("./cache_live.js").LiveSession) => void, onMoment: () => void, onLength: () => void}} options
 *   onStart: the first state is there; onMoment: a newer one is shown; onLength: only the past is longer
 */
export function createLiveMode({ model, status, onStart, onMoment, onLength }) {
  const words = h("p", { class: "hint", role: "status" });
  const live = { session: null, history: null, timer: 0, isFollowing: true, words, model, status, onStart, onMoment, onLength };
  return { start: () => startLive(live), stop: () => stopLive(live), setFollowing: (isFollowing) => setFollowing(live, isFollowing) };
}

function stopLive(live) {
  live.session?.close();
  clearTimeout(live.timer);
  Object.assign(live, { session: null, history: null, timer: 0 });
}

function setFollowing(live, isFollowing) {
  live.isFollowing = isFollowing;
  live.words.textContent = t(isFollowing ? "cache.live.following" : "cache.live.stopped");
}

function startLive(live) {
  stopLive(live);
  const loading = loadingState({ lines: 6, sentence: t("cache.live.connecting") });
  replaceContent(live.status, h("p", {}, t("cache.live.body")), loading);
  const onError = (error) => {
    loading.end();
    if (session === live.session) replaceContent(live.status, errorState(error, () => startLive(live)));
  };
  const session = openLive(live.model(), { onChange: () => session === live.session && onLiveChange(live, loading), onError });
  live.session = session;
}

function onLiveChange(live, loading) {
  if (live.history !== null) {
    live.timer ||= setTimeout(() => drawLive(live), DRAW_MS);
    return;
  }
  live.history = live.session.history;
  loading.end();
  replaceContent(live.status, h("p", {}, t("cache.live.body")), live.words);
  setFollowing(live, true);
  live.onStart(live.session);
}

function drawLive(live) {
  live.timer = 0;
  const isNew = live.history !== live.session.history; // the past was cut off: the present is shown
  live.history = live.session.history;
  if (isNew) setFollowing(live, true);
  if (live.isFollowing) live.onMoment();
  else live.onLength();
}
