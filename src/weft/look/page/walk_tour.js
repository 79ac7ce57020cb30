/**
 * The tour: eight steps in the order of the subject, from the whole model to its cost. Each step
 * opens the panels it speaks of. Terms are underlined and open their line of the glossary.
 * @module walk_tour
 */

import { h, replaceContent } from "./dom.js";
import { t } from "./i18n.js";
import { termButton } from "./terms.js";

const TOUR_STEPS = [["map"], ["tokens", "ids", "embedding"], ["position"], ["score", "attention", "projections"], ["heads"], ["residual", "units"], ["output", "cross", "lens"], ["kinds"]];

/** @param {import("./walk_panel.js").Walk} walk @param {Array<{id: string, open: () => void, element: HTMLElement}>} panels */
export function createTour(walk, panels) {
  const element = h("aside", { class: "tour", hidden: true, "aria-label": t("walk.tour") });
  let step = 0;
  const show = (next) => {
    step = Math.max(0, Math.min(TOUR_STEPS.length - 1, next));
    const shown = panels.filter((panel) => TOUR_STEPS[step].includes(panel.id));
    shown.forEach((panel) => panel.open());
    const place = shown[0]?.element;
    if (place) place.before(element);
    element.hidden = false;
    replaceContent(element, tourContent(step, show, end));
    element.scrollIntoView({ block: "start" });
    element.querySelector("h2").focus({ preventScroll: true });
  };
  const end = () => {
    element.hidden = true;
  };
  return { element, start: () => show(0) };
}

function tourContent(step, show, end) {
  const button = (key, go, isMain) => h("button", { type: "button", class: isMain ? "button button-main" : "button", on: { click: go } }, t(key));
  return [
    h("p", { class: "hint" }, t("walk.tour.place", { n: step + 1 })),
    h("h2", { tabindex: "-1" }, t(`walk.tour.${step + 1}.title`)),
    h("p", {}, textWithTerms(t(`walk.tour.${step + 1}.body`))),
    h(
      "div",
      { class: "button-row" },
      step > 0 ? button("walk.tour.previous", () => show(step - 1)) : null,
      step < TOUR_STEPS.length - 1 ? button("walk.tour.next", () => show(step + 1), true) : null,
      button("walk.tour.end", end),
    ),
  ];
}

/** "[text|term]" and "[term]" become buttons that open the line of the glossary. */
export function textWithTerms(text) {
  return text.split(/(\[[^\]]+\])/).map((part) => {
    if (!part.startsWith("[")) return part;
    const [words, term = words] = part.slice(1, -1).split("|");
    return termButton(words, term);
  });
}
