/**
 * "Why was my prefix not shared?": two prompts -> how many tokens the second can take from the
 * cache, the first token that differs, and every other reason.
 * @module cache_sharing
 */

import { postJson } from "./api.js";
import { foreignText, h, replaceContent } from "./dom.js";
import { createFigure } from "./figure.js";
import { hasText, t } from "./i18n.js";
import { errorState, loadingState } from "./states.js";

const SAID = ["different_token", "page_boundary"]; // by the lines above the reasons

/**
 * @param {import("./app.js").Context} context
 * @param {() => string[]} prompts  the two texts
 * @param {() => (import("./cache_session.js").ScratchSession|null)} session  null: the serving engine
 */
export function createSharing(context, prompts, session) {
  let result = null;
  const figure = createFigure({ id: "cache-why", question: t("cache.why.title"), table: () => sharingTable(result) });
  const place = h("div", { class: "sharing" });
  const compare = async () => {
    const [first, second] = prompts();
    const loading = loadingState({ lines: 2 });
    replaceContent(place, loading);
    try {
      const body = { first: { text: first }, second: { text: second } };
      const engine = session();
      result = engine ? await engine.why(body) : await postJson("/look/why", { model: context.store.get().model, ...body });
      replaceContent(place, sharingList(result));
      figure.element.classList.remove("has-no-result");
      figure.refresh();
    } catch (error) {
      replaceContent(place, errorState(error, compare));
    } finally {
      loading.end();
    }
  };
  figure.body.append(
    h("p", {}, t("cache.why.body")),
    h("button", { type: "button", class: "button", on: { click: compare } }, t("cache.why.compare")),
    place,
  );
  figure.element.classList.add("has-no-result"); // nothing to save yet
  return { element: figure.element };
}

function sharingList(sharing) {
  const values = { n: sharing.num_shared, all: sharing.num_second, equal: sharing.num_equal, size: sharing.page_size };
  return [
    h("p", { class: "sharing-line" }, t("cache.why.line", values)),
    sharing.difference ? differenceLine(sharing.difference) : null,
    h("ul", { class: "sharing-reasons" }, sharing.reasons.filter((reason) => !SAID.includes(reason.code)).map((reason) => h("li", {}, reasonWords(reason, sharing)))),
  ];
}

function reasonWords({ code, message }, sharing) {
  const key = `cache.reason.${code}`;
  return hasText(key) ? t(key, { n: sharing.num_cached, all: sharing.num_shared }) : foreignText(message);
}

function sharingTable(sharing) {
  const names = { num_first: "first", num_second: "second", num_equal: "equal", num_shared: "shared", num_cached: "cachedNow" };
  const rows = sharing ? Object.entries(names).map(([name, key]) => [t(`cache.${key}`), sharing[name] ?? "–"]) : [];
  return { columns: ["", t("cache.column.tokens")], rows };
}

function differenceLine({ position, first_text: first, second_text: second }) {
  const piece = (text) => foreignText(text ?? "–", "code");
  return h("p", {}, t("cache.why.position", { n: position }), " ", piece(first), " / ", piece(second));
}
