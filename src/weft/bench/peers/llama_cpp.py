# mypy: disable-error-code="import-not-found, import-untyped"
"""llama.cpp as a measured system: a GGUF file with its stored types, one stream."""

from __future__ import annotations

import llama_cpp
import numpy as np


class System:
    """One context, for one prompt at a time."""

    version = llama_cpp.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        self.llama = llama_cpp.Llama(
            model,
            n_ctx=max_len,
            n_batch=max_len,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy, no token ends a text."""
        return [self.generate_one(prompt, new_tokens) for prompt in prompts]

    def generate_one(self, prompt: list[int], new_tokens: int) -> list[int]:
        """A loop over eval(): generate() also sorts and filters candidates."""
        self.llama.reset()
        output: list[int] = []
        new_ids = prompt
        while len(output) < new_tokens:
            self.llama.eval(new_ids)
            new_ids = [self.most_likely()]
            output += new_ids
        return output

    def most_likely(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.llama.n_vocab(),)).argmax())
