"""`ScratchSessions`: the scratch engines of the callers of a server, and their state as JSON.

    {"id": "s_1f2e", "snapshot": ScratchEngine.snapshot(),
     "steps": [{"step": 5, "ops": [CacheEvent.to_json(), ...], "arrived": ["b"], "preempted": [],
                "finished": [], "evicted": 0, "beams": {"d": [[17, 4], [17, 9]]},
                "tokens": [{"request": "a", "index": 0, "id": 17, "logprob": -0.2,
                            "top": [{"id": 17, "p": 0.8}, ...]}]}],
     "texts": {"17": {"text": "cat", "bytes": "636174"}}}

`texts` has every token id of the JSON. An engine is created and stepped in the thread of its
model, one step between two steps of the serving engine. A session of a caller may have two scratch
engines. An engine is dropped after ten minutes without use; of more than eight, the oldest is.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from weft.cache.prefix_cache import PrefixQuery
from weft.engine.request import RequestOutput
from weft.engine.scheduling.sequence import Request as EngineRequest
from weft.look.host import LookModel
from weft.look.prefix_sharing import CachedPrompt, text_of
from weft.look.scratch_engine import ScratchConfig, ScratchEngine, ScratchStep
from weft.text.tokenizer import Tokenizer

MAX_SESSIONS, MAX_OF_CALLER, IDLE_SECONDS = 8, 2, 600.0


@dataclass(frozen=True)
class Script:
    """The tokens of a scenario."""

    ids: Sequence[int]
    source: Sequence[int] | None = None


@dataclass(eq=False)
class ScratchSession:
    """One scratch engine of a caller."""

    model: LookModel
    config: ScratchConfig
    script: Script | None = None
    id: str = field(default_factory=lambda: f"s_{secrets.token_hex(6)}")
    scratch: ScratchEngine | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One request at a time changes the engine."""
    used_at: float = 0.0

    def make_units(self) -> Generator[None, None, dict[str, Any]]:
        """Engine thread: a new engine; its answer."""
        loaded = self.model.loaded
        if self.script is None:
            self.scratch = ScratchEngine(loaded.model, loaded.tokenizer, self.config)
        else:
            self.scratch = ScratchEngine.with_scenario(
                loaded.model, loaded.tokenizer, self.script.ids, self.script.source, self.config
            )
        yield
        return self.answer([])

    def step_units(self, count: int) -> Generator[None, None, dict[str, Any]]:
        """Engine thread: up to `count` steps, fewer if nothing is left to do; their answer."""
        steps: list[ScratchStep] = []
        while len(steps) < count and not self.engine.is_idle:
            steps.append(self.engine.step())
            yield
        return self.answer(steps)

    def num_cached(self, prompt: CachedPrompt) -> int:
        """Engine thread: leading tokens of a prompt that the cache has now."""
        source = None if prompt.source is None else tuple(prompt.source)
        namespace = EngineRequest("", tuple(prompt.ids), 1, source, "").namespace
        prefix_cache = self.engine.engine.kv_cache.prefix_cache
        return prefix_cache.peek(PrefixQuery(list(prompt.ids), namespace))

    @property
    def engine(self) -> ScratchEngine:
        assert self.scratch is not None, f"session {self.id} has no engine yet"
        return self.scratch

    def answer(self, steps: Iterable[ScratchStep], **more: Any) -> dict[str, Any]:
        """The state after the last step, and these steps."""
        content = {
            "id": self.id,
            **more,
            "steps": [step_json(step) for step in steps],
            "snapshot": self.engine.snapshot(),
        }
        return {**content, "texts": texts_of(content, self.model.loaded.tokenizer.target)}


class ScratchSessions:
    """The sessions of a server. Used by the event loop only."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.sessions: OrderedDict[tuple[str, str], ScratchSession] = OrderedDict()
        """By caller and id, the one used last at the end."""

    def add(self, caller: str, session: ScratchSession) -> None:
        """Keep a new session; the oldest of too many are dropped."""
        self.sessions[caller, session.id] = session
        self.get(caller, session.id)
        own = [key for key in self.sessions if key[0] == caller]
        for key in own[: -MAX_OF_CALLER or None]:
            del self.sessions[key]
        while len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)

    def get(self, caller: str, session_id: str) -> ScratchSession | None:
        """The session, used now; None: unknown, dropped, or another caller's."""
        now = self.now()
        for key, one in list(self.sessions.items()):
            if one.used_at and now - one.used_at > IDLE_SECONDS:
                del self.sessions[key]
        session = self.sessions.get((caller, session_id))
        if session is not None:
            session.used_at = now
            self.sessions.move_to_end((caller, session_id))
        return session

    def remove(self, caller: str, session_id: str) -> None:
        self.sessions.pop((caller, session_id), None)


def step_json(step: ScratchStep) -> dict[str, Any]:
    return {
        "step": step.number,
        "ops": [event.to_json() for event in step.events],
        "arrived": step.arrived,
        "preempted": step.preempted,
        "finished": step.finished,
        "evicted": step.num_evicted,
        "beams": step.beams,
        "tokens": [token for output in step.outputs for token in tokens_json(output)],
    }


def tokens_json(output: RequestOutput) -> list[dict[str, Any]]:
    """The new tokens of an output; log-probabilities where they were asked for."""
    entries = []
    for place, token in enumerate(output.tokens):
        logprob = output.logprobs[place] if place < len(output.logprobs) else None
        top = () if logprob is None else logprob.top
        entries.append(
            {
                "request": output.request_id,
                "index": output.index,
                "id": token,
                "logprob": None if logprob is None else logprob.logprob,
                "top": [{"id": index, "p": exp(value)} for index, value in top],
            }
        )
    return entries


def texts_of(content: dict[str, Any], tokenizer: Tokenizer) -> dict[str, dict[str, str]]:
    """Text and bytes of every token id of an answer."""
    snapshot, ids = content["snapshot"], set[int]()
    for step in content["steps"]:
        for op in step["ops"]:
            ids.update(op.get("tokens") or ())
        for token in step["tokens"]:
            ids.update([token["id"], *(one["id"] for one in token["top"])])
        for hypotheses in step["beams"].values():
            ids.update(token for tokens in hypotheses for token in tokens)
    for node in snapshot["nodes"]:
        ids.update(node["tokens"])
    for request in snapshot["requests"]:
        ids.update(request["prompt"])
        for tokens in (*request["outputs"], *(one["tokens"] for one in request["sequences"])):
            ids.update(tokens)
    return token_texts(ids, tokenizer)


def token_texts(ids: Iterable[int], tokenizer: Tokenizer) -> dict[str, dict[str, str]]:
    """Text and bytes in hex by id; bytes that are no whole characters are the text in hex."""
    known = sorted({token for token in ids if 0 <= token < tokenizer.vocab_size})
    data = tokenizer.token_bytes(known)
    return {
        str(token): {"text": text_of(token, tokenizer) or "", "bytes": one.hex()}
        for token, one in zip(known, data, strict=True)
    }
