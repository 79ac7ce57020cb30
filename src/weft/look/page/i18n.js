/**
 * Texts of the page in English and Chinese, one file of strings for each view.
 *
 *     {"en": {"play.run": "Run"}, "zh": {"play.run": "运行"}}
 * @module i18n
 */

import { readPreference, writePreference } from "./preferences.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const texts = { en: {}, zh: {} };
let current = "en";

/**
 * A file of the page: inlined in an exported page (`<script type="application/json" id="asset-...">`),
 * fetched otherwise.
 * @param {string} name `strings/shell.json`
 */
export async function loadAsset(name) {
  const inlined = inlinedAsset(name);
  if (inlined !== null) return inlined;
  const response = await fetch(`/assets/${name}`);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.json();
}

/** A value inside an exported page, or null. @param {string} name */
export function inlinedAsset(name) {
  const block = document.getElementById(`asset-${name}`);
  return block ? JSON.parse(block.textContent) : null;
}

const loaded = new Set();

/** Load the texts of some files: of the shell, of a view. @param {string[]} names */
export async function loadStrings(names) {
  const missing = names.filter((name) => !loaded.has(name));
  const files = await Promise.all(missing.map((name) => loadAsset(`strings/${name}.json`)));
  for (const file of files) {
    for (const language of Object.keys(LANGUAGES)) Object.assign(texts[language], file[language]);
  }
  missing.forEach((name) => loaded.add(name));
}

/** The language that is remembered, or the browser's. */
export function chooseLanguage() {
  const wanted = readPreference("language") ?? navigator.language.slice(0, 2);
  useLanguage(wanted in LANGUAGES ? wanted : "en");
}

function useLanguage(language) {
  current = language;
  document.documentElement.lang = language;
}

/** Choose and remember a language; the caller draws the page anew. @param {string} language */
export function setLanguage(language) {
  useLanguage(language);
  writePreference("language", language);
}

export function getLanguage() {
  return current;
}

/**
 * The text of a key in the current language, with `{name}` filled in. For `n: 1` the key with
 * `.one` is used if there is one.
 * @param {string} key
 * @param {Object<string, string|number>} [values]
 */
export function t(key, values = {}) {
  const table = texts[current];
  const single = values.n === 1 ? table[`${key}.one`] : undefined;
  const text = single ?? table[key] ?? texts.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** The headers of a table: one text, cut at "|". @param {string} key @returns {string[]} */
export function headersOf(key) {
  return t(key).split("|");
}

/** Whether there is a text for a key. @param {string} key */
export function hasText(key) {
  return key in texts[current];
}
