/**
 * Tokens as people read them: the text of a piece, its bytes in hex if they are not whole characters,
 * and visible spaces.
 * @module tokens
 */

const SPACES = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };

/** @typedef {{text: string, bytes?: number[]|string|null}} Piece  bytes: numbers, or hex as in a trace */

/** The bytes of a piece as numbers; null if they are not known. @param {Piece} piece @returns {number[]|null} */
export function bytesOf(piece) {
  if (typeof piece.bytes !== "string") return piece.bytes ?? null;
  return piece.bytes.match(/../g)?.map((pair) => parseInt(pair, 16)) ?? [];
}

/** `E8 8B`. @param {number[]} bytes */
export function hexText(bytes) {
  return bytes.map((one) => one.toString(16).toUpperCase().padStart(2, "0")).join(" ");
}

/** The characters of some bytes; null if they are not whole characters. @param {number[]} bytes */
export function decodedText(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

/** What a chip shows: text with visible spaces, or hex bytes; never U+FFFD. @param {Piece} piece */
export function pieceLabel(piece) {
  const bytes = bytesOf(piece);
  const text = bytes === null ? piece.text : decodedText(bytes);
  if (text === null || (bytes === null && text.includes("\ufffd"))) return bytes ? hexText(bytes) : "\u2026";
  if (text === "") return piece.text || "\u2205";
  return visibleText(text);
}

/** Text in which leading and trailing spaces and all line ends can be seen. @param {string} text */
export function visibleText(text) {
  return text
    .replace(/[\n\r\t]/g, (one) => SPACES[one])
    .replace(/^ +| +$/g, (run) => SPACES[" "].repeat(run.length));
}

/** Whether some bytes are the beginning of valid text. */
function isBeginning(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes), { stream: true });
    return true;
  } catch {
    return false;
  }
}

/** Text with U+FFFD for what is no text, as a server sends it. @param {number[]} bytes */
export function lossyText(bytes) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
}

/**
 * Runs of tokens whose bytes together are whole characters, or can never become any. A character
 * that several tokens share is one run; what may still become one is left out.
 * @template {Piece} T
 * @param {T[]} pieces with bytes
 * @returns {Array<{text: string, isText: boolean, pieces: T[]}>}
 */
export function characterRuns(pieces) {
  const runs = [];
  const bytesIn = (list) => list.flatMap((one) => bytesOf(one) ?? []);
  const close = (list, isText) => list.length && runs.push({ text: lossyText(bytesIn(list)), isText, pieces: list });
  let open = [];
  for (const piece of pieces) {
    if (open.length && !isBeginning(bytesIn([...open, piece]))) {
      close(open, false);
      open = [];
    }
    open.push(piece);
    const isText = decodedText(bytesIn(open)) !== null;
    if (!isText && isBeginning(bytesIn(open))) continue;
    close(open, isText);
    open = [];
  }
  return runs;
}
