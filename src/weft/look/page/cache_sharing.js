/**
 * "Why was my prefix not shared?": two prompts -> how many tokens the second can take from the
 * cache, the first token that differs, and every other reason.
 * @module cache_sharing
 */

import { postJson } from "./api.js";
import { foreignText, h, replaceContent } from "./dom.js";
import { createFigure } from "./figure.js";
import { t } from "./i18n.js";
import { errorState, loadingState } from "./states.js";

/**
 * @param {import("./app.js").Context} context
 * @param {() => string[]} prompts  the two texts
 */
export function createSharing(context, prompts) {
  const figure = createFigure({ id: "cache-why", question: t("cache.why.title") });
  const place = h("div", { class: "sharing" });
  const compare = async () => {
    const [first, second] = prompts();
    const loading = loadingState({ lines: 2 });
    replaceContent(place, loading);
    try {
      const body = { model: context.store.get().model, first: { text: first }, second: { text: second } };
      replaceContent(place, sharingList(await postJson("/look/why", body)));
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
  return { element: figure.element };
}

function sharingList(sharing) {
  const values = { n: sharing.num_shared, all: sharing.num_second, equal: sharing.num_equal, size: sharing.page_size };
  return [
    h("p", { class: "sharing-line" }, t("cache.why.line", values)),
    sharing.difference ? differenceLine(sharing.difference) : null,
    h("ul", { class: "sharing-reasons" }, sharing.reasons.map((reason) => h("li", {}, foreignText(reason.message)))),
  ];
}

function differenceLine({ position, first_text: first, second_text: second }) {
  const piece = (text) => foreignText(text ?? "–", "code");
  return h("p", {}, t("cache.why.position", { n: position }), " ", piece(first), " / ", piece(second));
}
