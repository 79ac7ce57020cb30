"""The table of all that can be measured: a name -> a child that has loaded a model.

Weft is an entry like any other, and there may be several of it with other settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from weft.bench.peers.forms import Form, in_form
from weft.bench.peers.install import python_of
from weft.bench.peers.peer import Peer, PeerError
from weft.core.registry import pick

Skill = Literal["stream", "batch", "translate"]
"""One prompt at a time; many at once; sources of an encoder-decoder."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class System:
    """One entry."""

    stem: str
    """Of its file here, and of its environment."""
    form: Form
    skills: frozenset[Skill]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return Path(__file__).with_name(f"{self.stem}.py")

    @property
    def is_own(self) -> bool:
        return self.stem == "weft"

    def python(self, folder: Path) -> Path | None:
        """Its Python; None where it is not installed."""
        return Path(sys.executable) if self.is_own else python_of(self.stem, folder)


WEFT, INT8, WITHOUT_CACHE = "weft", "weft int8", "weft without prefix cache"
ALL: frozenset[Skill] = frozenset(["stream", "batch", "translate"])

SYSTEMS = {
    WEFT: System("weft", "any", ALL),
    WITHOUT_CACHE: System("weft", "any", ALL, {"engine": {"prefix_cache": "none"}}),
    INT8: System(
        "weft", "any", frozenset(["stream", "batch"]), {"engine": {"activations": "int8"}}
    ),
    "llama.cpp": System("llama_cpp", "gguf", frozenset(["stream"])),
    "vllm": System("vllm", "hf", frozenset(["stream", "batch"])),
    "transformers": System("transformers", "hf", ALL),
    "ctranslate2": System("ctranslate2", "hf", frozenset(["translate"])),
}


def peers_for(skill: Skill) -> list[str]:
    """The names of the peers that have a skill."""
    return [name for name, one in SYSTEMS.items() if skill in one.skills and not one.is_own]


@contextmanager
def started(
    names: Sequence[str], model: str | Path, threads: int, max_len: int, folder: Path, say: Say
) -> Iterator[dict[str, Peer]]:
    """Children that have loaded the model, by name. Who is not there is said in one line."""
    with ExitStack() as stack:
        found: dict[str, Peer] = {}
        for name in names:
            system = pick(SYSTEMS, name, "system")
            python = system.python(folder)
            if python is None:
                say(
                    f"{name} is not installed: its rows are absent. `make bench-peers` installs it."
                )
                continue
            path = in_form(model, system.form, say)
            say(f"loading {name}")
            peer = stack.enter_context(Peer(name, python, system.file, threads))
            settings = {"threads": threads, "max_len": max_len, **system.settings}
            if can(peer, say, "load", model=str(path), **settings):
                found[name] = peer
        yield found


def can(peer: Peer, say: Say, do: str, **settings: Any) -> bool:
    """Whether a peer did what it was asked; said if not. Weft itself must be able to."""
    try:
        peer.ask(do, **settings)
    except PeerError as error:
        if peer.name == WEFT:
            raise
        say(str(error))
        return False
    return True
