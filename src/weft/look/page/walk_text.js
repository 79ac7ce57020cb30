/**
 * Panels 1 and 2: the text as tokens and words, and the ids of the tokens.
 * @module walk_text
 */

import { foreignText, h, replaceContent } from "./dom.js";
import { headersOf, t } from "./i18n.js";
import { formatCount, formatSigned } from "./numbers.js";
import { bytesOf, hexText } from "./tokens.js";
import { createPanel } from "./walk_panel.js";
import { labelOf } from "./walk_trace.js";

const MAX_CHIPS = 400;

/** Panel 1. @param {import("./walk_panel.js").Walk} walk */
export function tokensPanel(walk) {
  const { trace } = walk;
  const sides = h("div", { class: "token-sides" });
  const actions = h("div", { class: "button-row" });
  const panel = createPanel(walk, {
    id: "tokens",
    isOpen: true,
    question: () => t("walk.p1.title"),
    content: [sides, actions, h("p", { class: "hint" }, t("walk.p1.hint"))],
    draw: (selection, isOpen) => {
      if (isOpen) {
        const shown = Object.keys(trace.trace.tokens).filter((side) => trace.trace.tokens[side].length);
        replaceContent(sides, shown.map((side) => sideLine(walk, selection, side)));
        replaceContent(actions, groupButton(walk, selection, () => panel.update()));
      }
      return tokensLine(trace);
    },
    table: () => tokenTable(trace, walk.selection()),
  });
  return panel;
}

function tokensLine(trace) {
  const text = trace.trace.text;
  const tokens = trace.trace.tokens.src.filter((token) => !token.is_special).length;
  return t("walk.p1.result", { chars: formatCount([...text].length), tokens: formatCount(tokens), words: formatCount(trace.words.src.length) });
}

/** One side: its tokens in order, those of a word inside one bracket. */
function sideLine(walk, selection, side) {
  const { trace } = walk;
  const wordOf = new Map(trace.words[side].flatMap((word, i) => word.tokens.map((token) => [token, i])));
  const line = h("div", { class: "token-line" });
  let group = null;
  let open = null;
  for (const token of trace.trace.tokens[side].slice(0, MAX_CHIPS)) {
    const word = wordOf.get(token.i) ?? null;
    if (word === null || word !== open) {
      group = h("span", { class: word === null ? "token-group" : "token-group is-word" });
      line.append(group);
    }
    open = word;
    group.append(tokenChip(walk, selection, side, token));
  }
  return line;
}

function tokenChip(walk, selection, side, token) {
  const isChosen = walk.trace.sideOf(selection.part) === side && selection.token === token.i;
  const choose = () => walk.select({ stack: stackForSide(walk.trace, selection.part, side), token: token.i, key: null });
  const name = token.is_special ? `${token.text} (${t("walk.p1.special")})` : labelOf(token);
  return h(
    "button",
    { type: "button", class: `token-chip${token.is_special ? " is-special" : ""}`, "aria-pressed": String(isChosen), title: `${name} · ${token.id} · ${hexText(bytesOf(token) ?? [])}`, on: { click: choose } },
    foreignText(labelOf(token)),
  );
}

/** The part whose queries are the tokens of a side, the present one if it is one of them. */
export function stackForSide(trace, part, side) {
  if (trace.sideOf(part) === side) return part;
  return Object.keys(trace.parts).find((one) => trace.sideOf(one) === side) ?? part;
}

/** Join the chosen token with the next one, or split its word. */
function groupButton(walk, { part, token }, update) {
  const { trace } = walk;
  const side = trace.sideOf(part);
  const [one, next] = trace.trace.tokens[side].slice(token, token + 2);
  const word = trace.words[side].find((candidate) => candidate.tokens.includes(token));
  if (word && word.tokens.length > 1) {
    return h("button", { type: "button", class: "button", on: { click: () => { splitWord(trace, side, word); update(); } } }, t("walk.p1.ungroup", { a: word.text }));
  }
  if (!word || !next || next.is_special) return null;
  const join = () => { joinTokens(trace, side, token); update(); };
  return h("button", { type: "button", class: "button", on: { click: join } }, t("walk.p1.group", { a: labelOf(one), b: labelOf(next) }));
}

function joinTokens(trace, side, token) {
  const tokens = trace.trace.tokens[side];
  const touched = trace.words[side].filter((word) => word.tokens.includes(token) || word.tokens.includes(token + 1));
  const members = [...new Set([token, token + 1, ...touched.flatMap((word) => word.tokens)])].sort((a, b) => a - b);
  const rest = trace.words[side].filter((word) => !touched.includes(word));
  trace.words[side] = [...rest, wordOfTokens(trace, tokens, members)].sort((a, b) => a.tokens[0] - b.tokens[0]);
}

function splitWord(trace, side, word) {
  const tokens = trace.trace.tokens[side];
  const rest = trace.words[side].filter((one) => one !== word);
  const parts = word.tokens.map((token) => wordOfTokens(trace, tokens, [token]));
  trace.words[side] = [...rest, ...parts].sort((a, b) => a.tokens[0] - b.tokens[0]);
}

function wordOfTokens(trace, tokens, members) {
  const span = [tokens[members[0]].span[0], tokens[members.at(-1)].span[1]];
  return { text: members.map((token) => labelOf(tokens[token])).join(""), span, tokens: members };
}

function tokenTable(trace, { part }) {
  const side = trace.sideOf(part);
  const rows = trace.trace.tokens[side].map((token) => [String(token.i), labelOf(token), String(token.id), hexText(bytesOf(token) ?? []), token.word === null ? "" : trace.trace.words[side][token.word].text]);
  return { columns: headersOf("walk.p1.columns"), rows };
}

/** Panel 2. @param {import("./walk_panel.js").Walk} walk */
export function idsPanel(walk) {
  const { trace } = walk;
  const box = h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": t("walk.p2.title") });
  const near = h("div", { class: "neighbors" });
  const known = new Map();
  return createPanel(walk, {
    id: "ids",
    question: () => t("walk.p2.title"),
    content: [box, near],
    draw: async (selection, isOpen) => {
      const token = trace.tokensOf(selection.part)[selection.token];
      if (isOpen) {
        replaceContent(box, idTable(walk, selection));
        if (walk.hasServer) replaceContent(near, neighborList(token, await neighborsOf(walk, known, selection)));
      }
      return t("walk.p2.result", { token: labelOf(token), id: formatCount(token.id), vocab: formatCount(trace.model.vocab) });
    },
    table: () => tokenTable(trace, walk.selection()),
  });
}

/** The tokens with similar embeddings, asked for once. */
async function neighborsOf(walk, known, { part, token }) {
  const side = walk.trace.sideOf(part);
  const name = `${side}.${token}`;
  if (!known.has(name)) known.set(name, (await walk.neighbors(side, token)).neighbors);
  return known.get(name);
}

function neighborList(token, neighbors) {
  const rows = neighbors.map((one) => h("li", {}, foreignText(labelOf(one)), " ", h("span", { class: "number" }, formatSigned(one.cosine))));
  return [h("p", { class: "hint" }, t("walk.p2.neighbors", { token: labelOf(token) })), h("ol", { class: "found" }, rows)];
}

function idTable(walk, selection) {
  const tokens = walk.trace.tokensOf(selection.part);
  const rows = tokens.slice(0, MAX_CHIPS).map((token) =>
    h(
      "tr",
      { class: token.i === selection.token ? "is-chosen" : null },
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", on: { click: () => walk.select({ token: token.i, key: null }) } }, foreignText(labelOf(token)))),
      h("td", {}, String(token.id)),
      h("td", {}, hexText(bytesOf(token) ?? [])),
    ),
  );
  const head = headersOf("walk.p1.columns").slice(1, 4).map((name) => h("th", { scope: "col" }, name));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}
