/**
 * Embeddings: one vector for each line, and how alike the lines are.
 * @module play_embeddings
 */

import { isAborted, postJson } from "./api.js";
import { onThemeChange, sequentialTable } from "./colors.js";
import { h, replaceContent, svg } from "./dom.js";
import { createFigure } from "./figure.js";
import { t } from "./i18n.js";
import { formatCount, formatSigned, formatTime } from "./numbers.js";
import { rovingItems } from "./roving.js";
import { errorState, loadingState, reducedNotice } from "./states.js";

const MAX_SHOWN = 16;
const CELL = 40;
const LABELS = 184;
const LABEL_LENGTH = 20;

/**
 * @param {import("./app.js").Context} context
 * @param {{path: string, body: {input: string[]}}} request
 * @param {() => void} onRetry
 */
export function startEmbedding(context, request, onRetry) {
  const abort = new AbortController();
  const element = h("div", { class: "run", "aria-busy": "true", data: { state: "streaming" } });
  const loading = loadingState({ lines: 3, onStop: () => abort.abort() });
  element.append(loading);
  const begin = performance.now();
  let unlisten = () => {};
  const ended = postJson(request.path, request.body, { signal: abort.signal }).then(
    (result) => {
      const shown = similarityFigure(context, request.body.input, result);
      const times = [formatTime(performance.now() - begin), t("play.time.prompt", { n: formatCount(result.usage.prompt_tokens) }), t("play.width", { n: formatCount(result.data[0].embedding.length) })];
      unlisten = shown.unlisten;
      replaceContent(element, shown.elements, h("p", { class: "run-times", role: "status" }, times.join(" \u00b7 ")));
      element.dataset.state = "done";
      return { isComplete: true };
    },
    (error) => {
      replaceContent(element, isAborted(error) ? h("p", { class: "hint" }, t("play.stopped")) : errorState(error, onRetry));
      return { isComplete: false };
    },
  ).finally(() => {
    loading.end();
    element.setAttribute("aria-busy", "false");
  });
  return { element, ended, stop: () => abort.abort(), unmount: () => unlisten() };
}

/** The cosine of each pair. @param {number[][]} vectors */
export function cosines(vectors) {
  const dot = (one, other) => one.reduce((sum, value, index) => sum + value * other[index], 0);
  const lengths = vectors.map((one) => Math.sqrt(dot(one, one)) || 1);
  return vectors.map((one, i) => vectors.map((other, j) => dot(one, other) / (lengths[i] * lengths[j])));
}

function similarityFigure(context, texts, result) {
  const values = cosines(result.data.map((one) => one.embedding));
  const number = Math.min(texts.length, MAX_SHOWN);
  const picture = svg("svg", { class: "similarity", role: "group", width: LABELS + number * CELL, height: number * CELL });
  const figure = createFigure({
    id: "similarity",
    question: t("play.similarity"),
    picture: () => picture,
    table: () => ({ columns: ["", ...texts], rows: texts.map((text, i) => [text, ...values[i].map((one) => formatSigned(one, 4))]) }),
    maths: t("play.similarity.maths"),
  });
  const draw = () => {
    replaceContent(picture, similarityMarks(context, texts.slice(0, number), values));
    rovingItems("similarity", [...picture.querySelectorAll(".similarity-cell")], number);
  };
  draw();
  figure.body.append(h("div", { class: "similarity-box", tabindex: "0", role: "group", "aria-label": t("play.similarity") }, picture));
  const sentence = closestPair(texts, values);
  picture.setAttribute("aria-label", sentence);
  figure.setLine(sentence);
  const reduced = texts.length > number ? reducedNotice(t("play.similarity.reduced", { n: number, all: formatCount(texts.length) })) : null;
  return { elements: [figure.element, reduced], unlisten: onThemeChange(draw) };
}

function closestPair(texts, values) {
  let best = [0, 0, -Infinity];
  values.forEach((row, i) => row.forEach((value, j) => {
    if (i < j && value > best[2]) best = [i, j, value];
  }));
  if (best[1] === 0) return t("play.similarity.one");
  return t("play.similarity.line", { one: clipped(texts[best[0]]), other: clipped(texts[best[1]]), value: formatSigned(best[2]) });
}

function clipped(text) {
  return [...text].length > LABEL_LENGTH ? `${[...text].slice(0, LABEL_LENGTH - 1).join("")}\u2026` : text;
}

function similarityMarks(context, texts, values) {
  const table = sequentialTable();
  return texts.map((text, i) => [
    svg("text", { class: "similarity-label", x: 0, y: (i + 0.5) * CELL }, `${i + 1}  ${clipped(text)}`),
    texts.map((other, j) => similarityCell(context, { i, j, text, other, value: values[i][j] }, table)),
  ]);
}

function similarityCell(context, { i, j, text, other, value }, table) {
  const color = table.slice(4 * Math.round(Math.max(0, Math.min(1, value)) * 255)).slice(0, 3);
  const isDark = (0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]) / 255 < 0.5;
  const select = () => context.inspector.show({
    title: t("play.pair", { i: i + 1, j: j + 1 }),
    piece: formatSigned(value, 4),
    facts: [[String(i + 1), text], [String(j + 1), other]],
    sentence: t("play.similarity.cell", { one: clipped(text), other: clipped(other), value: formatSigned(value) }),
  });
  const box = { x: LABELS + j * CELL, y: i * CELL, width: CELL, height: CELL };
  return svg(
    "g",
    { class: "similarity-cell", "aria-label": `${i + 1}, ${j + 1}: ${formatSigned(value, 4)}`, on: { click: select } },
    svg("rect", { ...box, fill: `color(srgb ${[...color].map((one) => (one / 255).toFixed(4)).join(" ")})` }),
    svg("text", { class: isDark ? "on-dark" : "on-light", x: box.x + CELL / 2, y: box.y + CELL / 2 }, formatSigned(value)),
  );
}
