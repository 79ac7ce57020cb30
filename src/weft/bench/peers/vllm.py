# mypy: disable-error-code="import-not-found, import-untyped"
"""vLLM as it is measured: float32 on a CPU, compiled, with its own prefix cache."""

from __future__ import annotations

import os

# read when vllm is imported: 2 GiB of cache, and no second process to talk to
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import vllm


class System:
    """One LLM."""

    version = vllm.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        # left to itself it may keep a core free for other work
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        self.llm = vllm.LLM(model, dtype="float32", max_model_len=max_len)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy, all prompts at once, no token ends a text."""
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = self.llm.generate(given, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]
