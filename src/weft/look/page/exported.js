/**
 * Boot of an exported file: the Walk view of the trace inside it, without a server.
 * @module exported
 */

import { h, replaceContent } from "./dom.js";
import { chooseLanguage, inlinedAsset, loadStrings } from "./i18n.js";
import { createInspector } from "./inspector.js";
import { applyTheme, readPreference } from "./preferences.js";
import { createRail, keysButton, languageButton, themeButton } from "./shell.js";
import { createStore } from "./state.js";
import { createTokenStrip } from "./token_strip.js";
import { mountWalk } from "./walk.js";

/** Show the file; after a change of language it is drawn anew. */
function drawExported(store, trace) {
  const live = h("div", { class: "visually-hidden", "aria-live": "polite" });
  const announce = (sentence) => { live.textContent = sentence; };
  const parts = { inspector: createInspector(announce), strip: createTokenStrip(store), rail: createRail() };
  const root = h("div", { class: "view view-walk" });
  const tools = h("div", { class: "top-tools" }, languageButton(() => drawExported(store, trace)), themeButton(), keysButton());
  const header = h("header", { class: "top" }, h("span", { class: "brand" }, "Weft"), h("span", { class: "hint" }, trace.model.name), tools);
  const main = h("main", { id: "main", tabindex: "-1" }, root);
  replaceContent(document.body, header, parts.strip.element, h("div", { class: "layout" }, parts.rail.element, main, parts.inspector.element), live);
  document.title = `${trace.text.slice(0, 60)} · Weft`;
  document.body.dataset.view = "walk";
  const context = { store, ...parts, announce, setRail: parts.rail.setItems, model: { kind: trace.model.kind }, trace, hasServer: false };
  drawn = { parts, view: mountWalk(root, context) };
  parts.strip.update();
}

let drawn = null;

async function startExported() {
  applyTheme(readPreference("theme") ?? "auto");
  await loadStrings(["shell", "walk"]);
  chooseLanguage();
  const store = createStore();
  drawExported(store, inlinedAsset("trace"));
  store.subscribe((state, changed) => {
    drawn.parts.strip.update();
    drawn.view.update(state, changed);
  });
  window.addEventListener("hashchange", () => store.readHash());
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select");
    if (!isTyping && !event.ctrlKey && !event.metaKey && !event.altKey && drawn.view.onKey(event.key)) event.preventDefault();
  });
}

startExported();
