"""One model -> the form that a system reads: as it is, a GGUF file or a Hugging Face folder.

What has to be written is written once, in float32, below $WEFT_CACHE/bench, so that all systems
compute with the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from weft.checkpoint.formats import convert, format_of
from weft.checkpoint.hub import cache_folder, resolve

Form = Literal["any", "gguf", "hf"]
FORMATS = {"gguf": "gguf", "hf": "huggingface"}
"""What `weft.checkpoint` calls each form."""


def in_form(model: str | Path, form: Form, say: Callable[[str], None]) -> Path:
    """The model's own path where it has that form, otherwise that of a copy that has it."""
    path = resolve(model).absolute()
    found = format_of(path)
    if form == "any" or found == FORMATS[form]:
        return path
    place = cache_folder().absolute() / "bench" / f"{path.stem}-{fingerprint(path)}"
    place = place.with_name(place.name + (".gguf" if form == "gguf" else "-hf"))
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        say(f"writing {place} (once, in float32)")
        convert(path, place, form)
    return place


def fingerprint(path: Path) -> str:
    """Eight letters that change when the model does."""
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(path), told)).encode()).hexdigest()[:8]
