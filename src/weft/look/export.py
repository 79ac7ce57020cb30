"""A trace as one HTML file: the page's modules, styles and strings with the trace inside.

    trace.to_html("trace.html")             a file that opens from a disk
    page_of_trace(trace)                    its text

Browsers do not load modules from `file://`, so they are joined into one inline script (modules.py).
The content security policy of the file allows this script and this style by their hashes, and no
connections.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.look.assets import page_sources
from weft.look.modules import compact, joined_modules
from weft.look.trace_data import Array, LogitLens
from weft.look.trace_json import encode, to_json

if TYPE_CHECKING:
    from weft.look.trace import Trace

ENTRY = "exported.js"
STRINGS = ("shell", "walk")
"""Texts that the file needs: those of the shell and of Walk."""
MAX_BYTES = 20_000_000
"""Size of the numbers in a file, in base64; what does not fit is left out, with a note."""
PRIORITY = (
    *("scores", "bias", "q", "k", "v", "c_kv", "k_rope"),
    *("embedding", "position", "input", "output", "residual"),
    *("hidden", "gate", "up", "logits"),
)
"""Stages of which a file has all numbers, the first ones first. What `auto` has is there as well:
weights, masks, lengths of vectors."""
FRAME_HEIGHT = 760
"""Of a notebook's cell, in pixels."""

SCRIPT = re.compile(r"""[ \t]*<script[^>]*\bsrc="/assets/[^"]+"[^>]*></script>\n?""")
STYLE = re.compile(r"""[ \t]*<link[^>]*\bhref="/assets/(?P<name>[^"]+\.css)"[^>]*>\n?""")
PRELOAD = re.compile(r"""[ \t]*<link\b[^>]*rel="modulepreload"[^>]*>\n?""")
NOSCRIPT = re.compile(r"[ \t]*<noscript>.*?</noscript>\n?", re.DOTALL)


def page_of_trace(trace: Trace) -> str:
    """The HTML of a file that shows this trace, opened from a disk."""
    return standalone_page(file_json(trace), page_sources())


def notebook_frame(trace: Trace) -> str:
    """The page as a cell of a notebook: a frame without access to the notebook or to a network."""
    page = escape(page_of_trace(trace), quote=True)
    style = f"width:100%;height:{FRAME_HEIGHT}px;border:1px solid #8a8a84;border-radius:6px"
    return (
        f'<iframe title="weft trace" sandbox="allow-scripts allow-downloads" style="{style}" '
        f'srcdoc="{page}"></iframe>'
    )


def file_json(trace: Trace) -> dict[str, Any]:
    """The trace with all numbers that the page shows, as far as they fit."""
    data = to_json(replace(trace, detail="auto", lens=lens_of(trace)))
    arrays: dict[str, Any] = data["arrays"]
    room = MAX_BYTES - sum(len(entry["b64"]) for entry in arrays.values())
    left_out: set[str] = set()
    for name, values in shown_arrays(trace):
        size = 4 * -(-values.nbytes // 3)
        if size > room:
            left_out.add(name.rsplit(".", 1)[-1])
            continue
        room -= size
        arrays[name] = encode(values)
    for stage in data["stages"]:
        stage["inline"] = stage["name"] in arrays
    if left_out:
        names = ", ".join(sorted(left_out))
        note = f"left out of this file of at most {MAX_BYTES // 10**6} MB: {names}"
        data["limits"]["notes"].append(note)
    return data


def lens_of(trace: Trace) -> LogitLens | None:
    """The logit lens of all positions, computed if the model is there and the text is short."""
    has_logits = trace.has(f"{trace.model.main_part}.logits")
    if trace.lens is not None or trace.source is None or trace.limits.reduced or not has_logits:
        return trace.lens
    return trace.logit_lens()


def shown_arrays(trace: Trace) -> Iterator[tuple[str, Array]]:
    """The kept arrays of PRIORITY, by priority."""
    for kind in PRIORITY:
        for name, values in trace.arrays.items():
            if name.rsplit(".", 1)[-1] == kind:
                yield name, values


def standalone_page(trace: Mapping[str, Any], page_files: Mapping[str, str]) -> str:
    """index.html with styles, texts, trace and script inside."""
    index = page_files["index.html"]
    script = compact(ENTRY, joined_modules(ENTRY, page_files))
    styles = [match["name"] for match in STYLE.finditer(index)]
    style = "\n".join(compact(name, page_files[name]) for name in styles)
    body = PRELOAD.sub("", STYLE.sub("", SCRIPT.sub("", NOSCRIPT.sub("", index))))
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, style)}">\n'
        f"<style>{style}</style>\n"
    )
    strings = {name: json.loads(page_files[f"strings/{name}.json"]) for name in STRINGS}
    blocks = "".join(data_block(f"strings/{name}.json", one) for name, one in strings.items())
    tail = f'{blocks}{data_block("trace", trace)}<script type="module">{script}</script>\n'
    return insert_before(insert_before(body, "</head>", head), "</body>", tail)


def data_block(name: str, value: Any) -> str:
    """JSON that the page reads as an asset of this name; a text in it cannot end the block."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json" id="asset-{name}">{text}</script>\n'


def policy(script: str, style: str) -> str:
    """A content security policy for one inline script and one inline style."""
    return (
        f"default-src 'none'; img-src data: blob:; script-src '{digest(script)}'; "
        f"style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def insert_before(html: str, tag: str, addition: str) -> str:
    """The document with a part before a closing tag."""
    before, found, after = html.rpartition(tag)
    if not found:
        raise UsageError(f"index.html has no {tag}: the page cannot be exported. Reinstall weft.")
    return before + addition + found + after
