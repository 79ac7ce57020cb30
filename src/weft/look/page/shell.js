/**
 * What surrounds the three views: header with models, views, language, theme and keys; the rail.
 * @module shell
 */

import { h, replaceContent, uniqueId } from "./dom.js";
import { icon, iconButton } from "./icons.js";
import { LANGUAGES, getLanguage, setLanguage, t } from "./i18n.js";
import { THEMES, applyTheme, readPreference } from "./preferences.js";
import { VIEW_NAMES, formatHash } from "./state.js";

const KEYS = ["Tab", "Ctrl Enter", "Esc", "\u2190 \u2192", "[ ]", ", .", "Space", "n", "?"];

/**
 * The header. `update` draws models, views and texts anew.
 * @param {import("./state.js").Store} store
 * @param {() => void} onLanguage
 */
export function createHeader(store, onLanguage) {
  const element = h("header", { class: "top" });
  const update = (models) => {
    const state = store.get();
    replaceContent(
      element,
      h("span", { class: "brand" }, "Weft"),
      modelChoice(store, models),
      viewLinks(state),
      h("div", { class: "top-tools" }, languageButton(onLanguage), themeButton(), keysButton()),
    );
  };
  return { element, update };
}

function modelChoice(store, models) {
  const names = Object.keys(models);
  if (!names.length) return null;
  const options = names.map((name) => h("option", { value: name, selected: name === store.get().model }, name));
  const onChange = (event) => store.set({ model: event.target.value, mode: "", turns: [], token: null, layer: null, head: null, stack: "" }, { push: true });
  return h("select", { class: "model-choice", "aria-label": t("shell.model"), on: { change: onChange } }, options);
}

function viewLinks(state) {
  const links = VIEW_NAMES.map((view) =>
    h("a", { href: formatHash({ ...state, view }), "aria-current": view === state.view ? "page" : null }, t(`shell.${view}`)),
  );
  return h("nav", { class: "views", "aria-label": t("shell.views") }, links);
}

export function languageButton(onLanguage) {
  const [other] = Object.keys(LANGUAGES).filter((one) => one !== getLanguage());
  const change = () => {
    setLanguage(other);
    onLanguage();
  };
  return h("button", { type: "button", class: "icon-button", lang: other, "aria-label": `${t("shell.language")}: ${LANGUAGES[other]}`, on: { click: change } }, other === "zh" ? "\u4e2d" : "EN");
}

export function themeButton() {
  const label = () => t("shell.theme", { theme: t(`shell.theme.${readPreference("theme") ?? "auto"}`) });
  const change = () => {
    const now = THEMES.indexOf(readPreference("theme") ?? "auto");
    applyTheme(THEMES[(now + 1) % THEMES.length]);
    button.setAttribute("aria-label", label());
    button.title = label();
  };
  const button = iconButton("theme", label(), change);
  return button;
}

export function keysButton() {
  const show = () => showKeys();
  return h("button", { type: "button", class: "icon-button", "aria-label": t("shell.keys"), title: t("shell.keys"), on: { click: show } }, "?");
}

/** The list of keys, as a dialog. */
export function showKeys() {
  const id = uniqueId("keys");
  const rows = KEYS.map((key, index) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, t(`keys.${index}`))));
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": id });
  dialog.append(
    h("h2", { id }, t("shell.keys")),
    h("dl", { class: "facts" }, rows),
    h("button", { type: "button", class: "button", on: { click: () => dialog.close() } }, t("shell.close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** @typedef {{id: string, label: string, isCurrent?: boolean, onSelect: () => void}} RailItem */

/** The rail: entries of the current view; a menu on smaller screens. */
export function createRail() {
  const list = h("ul", { class: "rail-list", id: uniqueId("rail") });
  const label = h("span", {});
  const toggle = h("button", { type: "button", class: "rail-toggle", "aria-expanded": "false", "aria-controls": list.id }, icon("menu"), label);
  const element = h("nav", { class: "rail" }, toggle, list);
  const setOpen = (isOpen) => {
    element.classList.toggle("is-open", isOpen);
    toggle.setAttribute("aria-expanded", String(isOpen));
  };
  toggle.addEventListener("click", () => setOpen(!element.classList.contains("is-open")));
  element.addEventListener("keydown", (event) => {
    if (event.key === "Escape") setOpen(false);
  });
  /** @param {RailItem[]} items */
  const setItems = (items) => {
    element.setAttribute("aria-label", t("shell.rail"));
    element.hidden = !items.length;
    replaceContent(label, items.find((one) => one.isCurrent)?.label ?? t("shell.rail"));
    replaceContent(list, items.map((one) => railEntry(one, () => setOpen(false))));
  };
  replaceContent(label, t("shell.rail"));
  element.setAttribute("aria-label", t("shell.rail"));
  return { element, setItems };
}

function railEntry(item, close) {
  const choose = () => {
    close();
    item.onSelect();
  };
  return h("li", {}, h("button", { type: "button", "aria-current": item.isCurrent ? "true" : null, on: { click: choose } }, item.label));
}
