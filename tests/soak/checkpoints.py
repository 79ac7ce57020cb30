"""Mutated checkpoint files: each is loaded or refused in one sentence, in time and memory.

A case is a base, one of its files, and edits of that file. The model is described, its tokenizer
loaded and used, its weights loaded and used in a forward pass; only a WeftError may be raised.
Memory: beyond what the process had, at most twice the bytes of the files and a constant.
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.soak.checkpoint_bases import BASES, base_folder, model_path
from tests.soak.checkpoint_edits import apply_edits, random_edits
from weft.checkpoint.description import describe as describe_checkpoint
from weft.checkpoint.formats import load_checkpoint, load_tokenizer
from weft.core.errors import WeftError
from weft.core.forward_batch import ForwardBatch
from weft.models.cost import cost_of
from weft.models.transformer import EncoderDecoder
from weft.text.chat_template import ChatTemplate

TEXT = "the cat sat\u2581 on \u00e9 <s> 12\n"
MAX_MESSAGE = 3000
CONSTANT_BYTES = 64 << 20
"""Allowed in addition to twice the file: buffers of the allocator and of libraries."""
ADDRESS_SPACE = 4 << 30
"""Additional address space of the process: a forged size fails instead of using up the machine."""

Case = dict[str, Any]


def describe(seed: int) -> Case:
    """The random case of a seed."""
    rng = random.Random(seed)
    base = rng.choice(list(BASES))
    folder = base_folder(base)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    return {
        "base": base,
        "file": str(path.relative_to(folder)),
        "edits": random_edits(path, rng),
    }


def run_case(seed: int) -> None:
    limit_memory()
    replay(describe(seed))


def replay(case: Case) -> None:
    prepare(case["base"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        shutil.copytree(base_folder(case["base"]), folder)
        apply_edits(folder / case["file"], case["edits"])
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        check_memory(lambda: try_all(model_path(folder)), 2 * size + CONSTANT_BYTES)


def try_all(path: Path) -> int:
    """Everything that reads a checkpoint; returns how many steps succeeded."""
    return sum(is_clean(step, path) for step in (try_describe, try_tokenizer, try_model))


def is_clean(step: Callable[[Path], None], path: Path) -> bool:
    """Whether a step succeeded; anything but a WeftError with one readable message is raised."""
    try:
        step(path)
    except WeftError as error:
        message = str(error)
        assert 0 < len(message) <= MAX_MESSAGE, f"a message of {len(message)} characters"
        assert "Traceback" not in message, message
        return False
    return True


def try_describe(path: Path) -> None:
    cost_of(describe_checkpoint(path).config)


def try_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(TEXT)
    tokenizer.target.decode(tokenizer.target.encode(TEXT), skip_special=False)
    tokenizer.token_bytes(ids)
    assert tokenizer.vocab_size > 0


def try_model(path: Path) -> None:
    checkpoint = load_checkpoint(path)
    model, config = checkpoint.model, checkpoint.model.config
    length = min(5, config.max_len)
    batch = ForwardBatch(torch.arange(length)[None] % config.vocab_size)
    source = ForwardBatch(
        torch.arange(length)[None] % (config.source_vocab_size or config.vocab_size)
    )
    with torch.no_grad():
        model(batch, source) if isinstance(model, EncoderDecoder) else model(batch)
    if checkpoint.chat_template is not None:
        ChatTemplate(checkpoint.chat_template, checkpoint.tokenizer.special_tokens)


PREPARED: set[str] = set()


def prepare(base: str) -> None:
    """Load a base as it is, once in a process: it must be valid, and what libraries allocate when
    they are used first is not memory of a case."""
    if base in PREPARED:
        return
    assert try_all(model_path(base_folder(base))) == 3, f"{base} cannot be loaded"
    PREPARED.add(base)


@cache
def limit_memory() -> None:
    """For the whole process, which therefore must be a child of the runner."""
    used = status_bytes("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, resource.RLIM_INFINITY))


def check_memory(function: Callable[[], object], limit: int) -> None:
    """Call a function; an AssertionError if its peak memory exceeds the limit."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = status_bytes("VmRSS")
    function()
    used = status_bytes("VmHWM") - before
    assert used <= limit, f"{used >> 20} MB of memory, more than {limit >> 20} MB"


def status_bytes(name: str) -> int:
    """A value of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(name))
