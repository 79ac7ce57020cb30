"""Weft as a measured system: its engine, with token ids in and out like the others.

Every call has its own cache salt, so that no round benefits from the prefix cache of an earlier
one. The memory of the KV cache is allocated before the first call, as in vLLM and llama.cpp.
Translation can use the cores in two ways, as CTranslate2 can: all of them in one engine, or one
engine per core, in a process of its own. Both are tried on the first sources for each beam width,
and the faster one is used.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from weft import __version__
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient, Searcher
from weft.engine.config import EngineConfig, batch_settings
from weft.engine.engine import Engine
from weft.engine.loaded_model import load
from weft.engine.request import GenerationRequest
from weft.engine.worker_pool import WorkerPool

BATCH_TOKENS = 4096
"""The token budget of `weft translate`."""
NUM_TRIED = 256


class System:
    """One engine, and a worker pool for translations. `engine` holds settings of EngineConfig."""

    version = __version__

    def __init__(
        self, model: str, threads: int, max_len: int, engine: dict[str, Any] | None = None
    ) -> None:
        torch.set_num_threads(threads)
        self.loaded = load(model, "cpu", engine=engine)
        budgets = batch_settings(BATCH_TOKENS) if self.loaded.kind == "encoder-decoder" else {}
        config = EngineConfig(**{"reserve": True, **budgets, **(engine or {})})
        self.engine = Engine(self.loaded.model, None, config)
        self.num_calls, self.note = 0, ""
        self.best: dict[int, str] = {}
        self.ways: dict[str, Searcher] = {"1 engine": EngineClient(self.engine)}
        if self.loaded.kind == "encoder-decoder" and threads > 1:
            self.ways[f"{threads} engines"] = WorkerPool(model, threads, "cpu", config)

    def salted(self, writings: list[GenerationRequest]) -> list[GenerationRequest]:
        self.num_calls += 1
        return [replace(writing, salt=f"call {self.num_calls}") for writing in writings]

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy, all prompts at once, no token ends a text."""
        writings = self.salted([GenerationRequest(tuple(prompt), new_tokens) for prompt in prompts])
        names = [self.engine.submit(writing) for writing in writings]
        outputs: dict[str, list[int]] = {name: [] for name in names}
        while not self.engine.is_idle:
            for update in self.engine.step():
                outputs[update.request_id] += update.tokens
        return [outputs[name] for name in names]

    def translate(self, sources: list[list[int]], beam: int, max_tokens: int) -> list[list[int]]:
        """The best translation of each source, all at once."""
        if beam not in self.best:
            self.best[beam] = self.fastest(sources[:NUM_TRIED], beam, max_tokens)
        self.note = self.best[beam]
        return self.translate_by(self.note, sources, beam, max_tokens)

    def fastest(self, sources: list[list[int]], beam: int, max_tokens: int) -> str:
        """The faster of the ways, each measured after a warm-up."""
        seconds: dict[str, float] = {}
        for name in [*self.ways, *self.ways]:
            begin = time.perf_counter()
            self.translate_by(name, sources, beam, max_tokens)
            seconds[name] = time.perf_counter() - begin
        return min(seconds, key=lambda name: seconds[name])

    def translate_by(
        self, name: str, sources: list[list[int]], beam: int, max_tokens: int
    ) -> list[list[int]]:
        use = self.loaded.generation_config
        search = BeamConfig(beam, first=use.first, banned=tuple(use.banned))
        builder = self.loaded.request_builder
        writings = [builder.beam_search(one, max_tokens, search) for one in sources]
        outputs: list[list[int]] = [[] for _ in sources]
        for index, output in self.ways[name].search(self.salted(writings)):
            outputs[index] = output.hypotheses[0].ids
        return outputs
