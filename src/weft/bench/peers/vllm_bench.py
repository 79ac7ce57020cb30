# mypy: disable-error-code="import-not-found, import-untyped"
"""vLLM's load generator, `vllm bench serve`, as a child: prompts and a server -> times of requests.

It calls the function behind the command: vLLM's packages for CPUs are not named vllm, which its
command line does not expect, and so the imports of several seconds are done once for all runs. It
also reads the prompts itself: vLLM would need pandas for that, which it does not install.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import vllm
from vllm.benchmarks import serve
from vllm.benchmarks.datasets import SampleRequest


class System:
    """`model` is a Hugging Face folder: the generator reads its tokenizer."""

    version = vllm.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        self.model = model
        self.cpu_seconds = 0.0
        self.result: dict[str, Any] = {}
        """Of the last run, with the times of all requests, which `main` leaves out."""
        self.benchmark = serve.benchmark
        serve.benchmark = self.timed_benchmark
        serve.get_samples = read_prompts

    async def timed_benchmark(self, **settings: Any) -> Any:
        """The requests without what is read before them: processor time of this process."""
        begin = time.process_time()
        result = await self.benchmark(**settings)
        self.cpu_seconds = time.process_time() - begin
        self.result = dict(result)
        return result

    def send(self, port: int, name: str, prompts: str, new_tokens: int, streams: int) -> Any:
        """Send the prompts of a JSON-lines file, `streams` at a time."""
        serve.main(self.arguments(port, name, prompts, new_tokens, streams))
        result = self.result
        tokens = [length - 1 for length in result["output_lens"]]
        pairs = zip(result["itls"], tokens, strict=True)
        return {
            "seconds": result["duration"],
            "cpu_seconds": self.cpu_seconds,
            "num_tokens": result["total_output_tokens"],
            "ttfts": result["ttfts"],
            "tpots": [sum(gaps) / number for gaps, number in pairs if number > 0],
            "errors": [error for error in result["errors"] if error],
        }

    def arguments(
        self, port: int, name: str, prompts: str, new_tokens: int, streams: int
    ) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        serve.add_cli_args(parser)
        return parser.parse_args(
            [
                *("--backend", "openai", "--endpoint", "/v1/completions"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--model", self.model, "--served-model-name", name),
                *("--dataset-name", "custom", "--dataset-path", prompts),
                *("--custom-output-len", str(new_tokens), "--max-concurrency", str(streams)),
                *("--ignore-eos", "--temperature", "0", "--disable-tqdm"),
                *("--ready-check-timeout-sec", "0"),
                # llama-server closes connections that were used some times while the next request
                # is on its way: every request has a new one
                *("--header", "Connection=close"),
            ]
        )


def read_prompts(arguments: argparse.Namespace, tokenizer: Any) -> list[SampleRequest]:
    """The prompts of the dataset's file, in its order."""
    lines = Path(arguments.dataset_path).read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    return [
        SampleRequest(
            prompt=text,
            prompt_len=len(tokenizer.encode(text)),
            expected_output_len=arguments.custom_output_len,
            request_id=str(index),
        )
        for index, text in enumerate(texts)
    ]
