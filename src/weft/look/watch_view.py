"""The live view of a generation as text: samples, pages and tree -> lines, as wide and as high as a
terminal.

     step  token        p     also
       7   apple        0.81  apples 0.09  fruit 0.03
    pages  3 of 8 in use   [####] [##..]x2 (####)
    tree   root
           +- I ate an (1 page, 2 locks)
           |  +- apple (2 pages)
           |  `- pear (1 page)

A page is drawn with its filled rows in quarters: [ ] a sequence holds it, ( ) only a cache holds
it. If the pages do not fit, each is one shade; if those do not fit, the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import gmtime, strftime

from weft.look.terminal import display_width, pad, plural, printable, shade, truncate
from weft.look.watch_state import (
    CacheState,
    NestedNode,
    PageState,
    WatchedSample,
    WatchedToken,
    WatchLog,
    run_label,
)

NAME_WIDTH = 7
"""The column with the names of the parts: text, tokens, pages, tree."""
MAX_TOKEN_WIDTH = 16
TREE_GLYPHS = ("\u251c\u2500 ", "\u2502  ", "\u2514\u2500 ", "   ")
ASCII_TREE_GLYPHS = ("+- ", "|  ", "`- ", "   ")
ELLIPSIS = "..."


@dataclass(frozen=True)
class ViewSize:
    """Columns and lines that the view may use."""

    width: int = 80
    height: int = 24


def watch_view(
    log: WatchLog,
    cache: CacheState,
    title: str,
    seconds: float,
    size: ViewSize | None = None,
    is_paused: bool = False,
) -> list[str]:
    """All lines of the view, at most `size.height`: what is left out is counted. The tree and the
    texts take the lines that the parts above them leave."""
    size = size or ViewSize()
    head = [header(log, cache, title, seconds, size.width), key_line(is_paused, size.width)]
    left = max(0, size.height - len(head))
    pages = page_lines(cache, size.width, 1 if left < 12 else 3, log.is_ascii)
    tree = tree_lines(cache, log, size.width, max(2, left // 3))
    texts = text_lines(log.samples, size.width, max(1, left // 4))
    rest = left - len(pages) - len(tree) - len(texts)
    tokens = token_lines(log.tokens, size.width, rest, len(log.samples) > 1)
    lines = [head[0], *texts, *tokens, *pages, *tree][: size.height - 1]
    return [truncate(line, size.width).rstrip() for line in (*lines, head[1])]


def header(log: WatchLog, cache: CacheState, title: str, seconds: float, width: int) -> str:
    """Title, step, speed and cached tokens, as far as they fit."""
    number = sum(one.num_tokens for one in log.samples)
    rate = f"{number / seconds:.1f} tok/s" if seconds > 0 and number else "-"
    facts = [f"step {cache.step}", f"{number} tokens", rate, f"hit {cache.hit_tokens} tok"]
    if cache.num_evicted:
        facts.append(f"{cache.num_evicted} evicted")
    facts.append(strftime("%M:%S", gmtime(seconds)))
    end = "  ".join(facts)
    room = width - display_width(end) - 2
    return f"{pad(truncate(title, room), room)}  {end}" if room > 4 else end


def key_line(is_paused: bool, width: int) -> str:
    paused = "paused  " if is_paused else ""
    line = f"{paused}q quit  space {'continue' if is_paused else 'pause'}  n next step"
    return " " * max(0, width - display_width(line)) + line


def text_lines(samples: Sequence[WatchedSample], width: int, height: int) -> list[str]:
    """The end of each text, one or more lines each; running ones first, as many as fit."""
    order = sorted(range(len(samples)), key=lambda place: samples[place].reason is not None)
    number = len(order) if len(order) <= height else max(1, height - 1)
    lines: list[str] = []
    for place in sorted(order[:number]):
        name = f"text {place}" if len(samples) > 1 else "text"
        lines += tail_lines(name, samples[place], width, max(1, height // number))
    if len(order) > number:
        lines.append(" " * NAME_WIDTH + f"and {len(order) - number} more")
    return lines[: max(1, height)]


def tail_lines(name: str, sample: WatchedSample, width: int, height: int) -> list[str]:
    """The last `height` lines of prompt and text; a line break is shown as a space."""
    end = "" if sample.reason is None else f" [{sample.reason}]"
    words = " ".join((sample.prompt + sample.text).splitlines())
    room = width - NAME_WIDTH
    rows = wrapped(printable(words) + end, room)
    if len(rows) > height:
        rows = rows[-height:]
        rows[0] = ELLIPSIS + drop_columns(rows[0], len(ELLIPSIS))
    return [pad(name if i == 0 else "", NAME_WIDTH) + row for i, row in enumerate(rows)]


def wrapped(text: str, width: int) -> list[str]:
    """The text cut into rows of at most `width` columns; no character is divided."""
    rows, row, used = [], "", 0
    for char in text:
        needed = display_width(char)
        if used + needed > width:
            rows.append(row)
            row, used = "", 0
        row += char
        used += needed
    return [*rows, row]


def drop_columns(text: str, number: int) -> str:
    """The text without its first columns; half of a wide character becomes a space."""
    used = 0
    for index, char in enumerate(text):
        if used >= number:
            return " " * (used - number) + text[index:]
        used += display_width(char)
    return ""


def token_lines(
    tokens: Sequence[WatchedToken], width: int, height: int, has_samples: bool
) -> list[str]:
    """The last tokens with probability and alternatives, under a header; `height` lines."""
    if height < 2:
        return []
    sample = "sample " if has_samples else ""
    token_width = MAX_TOKEN_WIDTH if width >= 72 else MAX_TOKEN_WIDTH // 2
    lines = [f" step  {sample}{pad('token', token_width)}  p     also"]
    for one in tokens[-(height - 1) :]:
        number = f"{one.sample:>6} " if has_samples else ""
        label = pad(truncate(one.label, token_width), token_width)
        start = f"{one.step:>5}  {number}{label}  {probability(one.probability)}"
        lines.append(fitted(start, alternatives(one, token_width), width))
    return lines + [""] * (height - len(lines))


def alternatives(token: WatchedToken, width: int) -> list[str]:
    return [f"{truncate(label, width)} {probability(p).strip()}" for label, p in token.others]


def fitted(start: str, parts: Sequence[str], width: int) -> str:
    """The line with as many of the parts as fit completely."""
    for part in parts:
        if display_width(start) + 2 + display_width(part) > width:
            break
        start += "  " + part
    return start


def probability(value: float) -> str:
    """0.81; <.01 for less than half of the last digit, four characters in any case."""
    return "<.01" if 0 < value < 0.005 else f"{value:.2f}"


def log_line(token: WatchedToken, cache: CacheState, has_samples: bool) -> str:
    """One token as a plain line, for output that is not a terminal."""
    sample = f"  sample {token.sample}" if has_samples else ""
    others = "  ".join(f'"{label}" {probability(p)}' for label, p in token.others)
    also = f"  also: {others}" if others else ""
    return (
        f'step {token.step}{sample}  "{token.label}" p={probability(token.probability)}{also}  '
        f"pages {len(cache.pages)}/{cache.num_usable}  hit {cache.hit_tokens} tok"
    )


def page_lines(cache: CacheState, width: int, height: int, is_ascii: bool = False) -> list[str]:
    """The held pages, at most `height` lines after the line with the counts."""
    in_use = sum(one.num_tables > 0 for one in cache.pages)
    count = f"{in_use} in use, {len(cache.pages) - in_use} only cached, of {cache.num_usable:,}"
    lines = [pad("pages", NAME_WIDTH) + f"{count}; {cache.page_size} tokens each"]
    room = width - NAME_WIDTH
    rows = list(packed([page_cell(one, cache.page_size) for one in cache.pages], " ", room))
    if len(rows) > height:
        shades = [shade_of(one, cache.page_size, is_ascii) for one in cache.pages]
        rows = list(packed(shades, "", room))
    if len(rows) > height:
        number = height * room - len(f" and {len(shades):,} more")
        rows = list(packed(shades[:number], "", room))
        rows[-1] += f" and {len(shades) - number:,} more"
    return lines + [" " * NAME_WIDTH + row for row in rows]


def page_cell(one: PageState, page_size: int) -> str:
    """[##..], with x2 if two sequences hold it; (####) if only a cache does."""
    filled = -(-4 * one.num_rows // page_size)
    body = "#" * filled + "." * (4 - filled)
    if not one.num_tables:
        return f"({body})"
    return f"[{body}]" + (f"x{one.num_tables}" if one.num_tables > 1 else "")


def shade_of(one: PageState, page_size: int, is_ascii: bool) -> str:
    """One character for the filled share of a page."""
    return "." if not one.num_rows else shade(max(0.05, one.num_rows / page_size), is_ascii)


def packed(cells: Sequence[str], between: str, width: int) -> Iterator[str]:
    """The cells in rows of at most `width` columns."""
    row = ""
    for cell in cells:
        longer = row + between + cell if row else cell
        if row and display_width(longer) > width:
            yield row
            longer = cell
        row = longer
    if row:
        yield row


def tree_lines(cache: CacheState, log: WatchLog, width: int, height: int) -> list[str]:
    """The radix tree, at most `height` lines; what does not fit is counted."""
    name = pad("tree", NAME_WIDTH)
    if cache.roots is None:
        return [f"{name}this prefix cache has no tree: it is not of kind radix"]
    nodes = list(islice(walk(cache.roots, log.is_ascii), height + 1))
    if len(nodes) <= len(cache.roots):
        return [f"{name}empty: no page of {cache.page_size} tokens is full"]
    if len(nodes) > height:
        total = sum(1 for _ in walk(cache.roots, log.is_ascii))
        nodes = nodes[: height - 1]
        more = f"and {total - len(nodes)} more nodes"
    else:
        more = ""
    lines = [
        prefix + node_label(node, log, width - NAME_WIDTH - display_width(prefix))
        for prefix, node in nodes
    ]
    lines += [more] if more else []
    return [(name if i == 0 else " " * NAME_WIDTH) + line for i, line in enumerate(lines)]


def walk(roots: Sequence[NestedNode], is_ascii: bool) -> Iterator[tuple[str, NestedNode]]:
    """Each node after its parent, with the characters that draw its place in the tree."""
    middle, through, last, blank = ASCII_TREE_GLYPHS if is_ascii else TREE_GLYPHS
    stack: list[tuple[str, str, NestedNode]] = [("", "", root) for root in reversed(roots)]
    while stack:
        prefix, below, node = stack.pop()
        yield prefix, node
        for index, child in reversed(list(enumerate(node.children))):
            is_last = index == len(node.children) - 1
            stack.append(
                (
                    below + (last if is_last else middle),
                    below + (blank if is_last else through),
                    child,
                )
            )


def node_label(node: NestedNode, log: WatchLog, width: int) -> str:
    """The text of a run, as much as fits, with its pages and locks."""
    if not node.tokens:
        return "root"
    locks = f", {plural(node.num_locks, 'lock')}" if node.num_locks else ""
    end = f" ({plural(node.num_pages, 'page')}{locks})"
    text = run_label(log.tokenizer, node.tokens)
    return without_middle(text, max(8, width - len(end))) + end


def without_middle(text: str, width: int) -> str:
    """The beginning and the end of a text: runs that follow the same page often begin alike."""
    if display_width(text) <= width:
        return text
    left = truncate(text, width // 3)
    return left + drop_columns(text, display_width(text) - (width - display_width(left)))
