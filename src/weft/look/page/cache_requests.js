/**
 * The requests of the engine at a moment: prompt, what each has written, the last token with its
 * alternatives, the branches of a beam search; of the serving engine, how many pages each holds.
 * @module cache_requests
 */

import { beamPicture, beamRows } from "./cache_beams.js";
import { requestBadge, requestOf, tokensText } from "./cache_names.js";
import { beamsAt, lastTokenAt, requestsAt } from "./cache_session.js";
import { foreignText, h } from "./dom.js";
import { t } from "./i18n.js";
import { formatCount, formatShare } from "./numbers.js";

const SHOWN_ALTERNATIVES = 4;

/** @param {import("./cache_session.js").ScratchSession} session @param {number} moment @param {number} width */
export function requestRows(session, moment, width) {
  return requestsAt(session, moment).map((one) => {
    const beams = one.beam ? beamRows(beamsAt(session, one, moment)) : [];
    return h(
      "li",
      { class: "request-row" },
      requestBadge(one.name),
      h("p", { class: "request-text" }, foreignText(tokensText(one.prompt, session.texts), "span", { class: "request-prompt" }), beams.length ? null : writtenText(one, session)),
      h("p", { class: "hint" }, stateWords(one), one.cached === null ? "" : `, ${t("cache.cached", { n: one.cached })}`),
      beams.length ? h("div", { class: "request-beams" }, beamPicture(beams, session.texts, Math.max(280, width - 48))) : null,
      alternativesLine(session, one, moment),
    );
  });
}

function writtenText(one, session) {
  const several = one.outputs.length > 1;
  return one.outputs.map((ids, index) => [" ", several ? h("span", { class: "hint" }, `${index} `) : null, foreignText(tokensText(ids, session.texts), "strong")]);
}

/** The last token of a request that runs, and what else was likely there. */
function alternativesLine(session, one, moment) {
  const last = one.finish ? null : lastTokenAt(session, one.name, moment);
  if (!last?.top.length) return null;
  const item = (id, p) => [foreignText(tokensText([id], session.texts), "span", { class: "mono" }), " ", h("span", { class: "number" }, formatShare(p))];
  const others = last.top.filter((other) => other.id !== last.id).slice(0, SHOWN_ALTERNATIVES);
  const listed = others.map((other, place) => [place ? ", " : "", item(other.id, other.p)]);
  return h("p", { class: "hint" }, t("cache.last"), " ", item(last.id, Math.exp(last.logprob)), others.length ? [" · ", t("cache.also"), " ", listed] : null);
}

export function stateWords(one) {
  return t(`cache.state.${one.finish ? "finished" : one.state}`);
}

/** Pages and rows by request, of those that hold pages now. @param {import("./cache_state.js").CacheState} state */
function holdersOf(state) {
  const holders = new Map();
  for (const { owners, rows } of state.pages.values()) {
    for (const name of new Set([...owners.keys()].map(requestOf))) {
      const { pages, filled } = holders.get(name) ?? { pages: 0, filled: 0 };
      if (name !== null) holders.set(name, { pages: pages + 1, filled: filled + rows });
    }
  }
  return [...holders].sort(([one], [other]) => one.length - other.length || (one < other ? -1 : 1));
}

export function liveRows(state) {
  const rows = holdersOf(state).map(([name, { pages, filled }]) =>
    h("li", { class: "request-row" }, requestBadge(name), h("p", { class: "request-text" }, t("cache.holds", { n: pages, rows: formatCount(filled) }))),
  );
  return rows.length ? rows : h("li", { class: "hint" }, t("cache.live.none"));
}

export function liveTable(state) {
  const columns = [t("cache.rail.requests"), t("cache.column.pages"), t("cache.rows")];
  return { columns, rows: holdersOf(state).map(([name, { pages, filled }]) => [name, pages, filled]) };
}
