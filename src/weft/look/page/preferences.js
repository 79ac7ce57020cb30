/**
 * What the page remembers besides its address: theme, language, API key. Storage may be forbidden,
 * as in a sandboxed frame; values are then kept until the page is closed.
 * @module preferences
 */

const memory = new Map();

/** The areas by name; reading the property throws where storage is forbidden. */
function storageArea(isSession) {
  try {
    return isSession ? window.sessionStorage : window.localStorage;
  } catch {
    return null;
  }
}

/** @param {string} name @param {boolean} [isSession] until the tab is closed */
export function readPreference(name, isSession = false) {
  const stored = storageArea(isSession)?.getItem(`weft.${name}`);
  return stored ?? memory.get(name) ?? null;
}

/** Null removes it. @param {string} name @param {string|null} value @param {boolean} [isSession] */
export function writePreference(name, value, isSession = false) {
  const area = storageArea(isSession);
  if (value === null) {
    memory.delete(name);
    area?.removeItem(`weft.${name}`);
    return;
  }
  memory.set(name, value);
  try {
    area?.setItem(`weft.${name}`, value);
  } catch {
    // full, or forbidden: memory has it
  }
}

/** The three choices of the theme button. */
export const THEMES = ["auto", "light", "dark"];

/** Apply and remember a theme. @param {string} theme */
export function applyTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  writePreference("theme", theme === "auto" ? null : theme);
  root.dispatchEvent(new CustomEvent("weft-theme"));
}
