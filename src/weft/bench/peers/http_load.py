"""A load generator for machines without vLLM: prompts and a server -> times of requests.

A thread for each stream, with the standard library only. It sends what `vllm bench serve` sends
and counts as it does: TTFT until the first chunk of a response, TPOT from there to the last chunk,
divided by the number of the other tokens. It runs as a child (child.py), without importing Weft.
"""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any


class System:
    """The arguments are those of every System; none is needed."""

    version = "1"

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        pass

    def send(self, port: int, name: str, prompts: str, new_tokens: int, streams: int) -> Any:
        """Send the prompts of a JSON-lines file, `streams` at a time."""
        lines = Path(prompts).read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["prompt"] for line in lines]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(streams) as threads:
            results = list(threads.map(partial(complete, port, name, new_tokens), texts))
        return {
            "seconds": time.perf_counter() - begin,
            "cpu_seconds": time.process_time() - begin_cpu,
            "num_tokens": sum(result["num_tokens"] for result in results),
            "ttfts": [one["ttft"] for one in results if not one["error"]],
            "tpots": [one["tpot"] for one in results if one["tpot"] is not None],
            "errors": [one["error"] for one in results if one["error"]],
        }


def complete(port: int, name: str, new_tokens: int, prompt: str) -> dict[str, Any]:
    """One streamed completion."""
    body = {
        "model": name,
        "prompt": prompt,
        "repetition_penalty": 1.0,
        "max_tokens": new_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begin = time.perf_counter()
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            return failed(f"status {response.status}: {response.read(200)!r}")
        return read_events(response, begin)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return failed(f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def read_events(response: http.client.HTTPResponse, begin: float) -> dict[str, Any]:
    """Times of the first and the last chunk, and the number of tokens that the server tells."""
    times: list[float] = []
    num_tokens = 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("choices"):
            times.append(time.perf_counter())
        elif chunk.get("usage"):
            num_tokens = chunk["usage"]["completion_tokens"]
    if not times or not num_tokens:
        return failed("the stream ended without a token")
    tpot = (times[-1] - times[0]) / (num_tokens - 1) if num_tokens > 1 else None
    return {"ttft": times[0] - begin, "tpot": tpot, "num_tokens": num_tokens, "error": ""}


def failed(error: str) -> dict[str, Any]:
    return {"ttft": 0.0, "tpot": None, "num_tokens": 0, "error": error}
