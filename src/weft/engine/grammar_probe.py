"""The program of the child process that compiles a grammar with limits: Lark on stdin -> exit code,
and on stdout why llguidance rejects it, or nothing.

0: it was compiled or rejected. Otherwise the time or memory limit ended the process. Imports
llguidance and nothing of Weft. The limit is CPU time, so that other processes do not change which
grammars are allowed.
"""

import resource
import sys
from contextlib import suppress

sys.path.extend(sys.argv[3:])  # `-S` left out site-packages: the folder of llguidance


class ByteTokens:
    """A vocabulary of single bytes, as llguidance expects it."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = [256]
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def main(seconds: int, megabytes: int) -> None:
    limits = {"CPU": seconds, "AS": megabytes << 20, "CORE": 0}
    from llguidance import LLMatcher, LLTokenizer

    for name, value in limits.items():
        with suppress(ValueError, OSError):  # a lower limit already holds; not every system has all
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    lark = sys.stdin.buffer.read().decode()
    state = LLMatcher(LLTokenizer(ByteTokens()), lark, log_level=0)  # type: ignore[arg-type]
    if state.is_error():
        sys.stdout.buffer.write(state.get_error().encode())
    else:
        state.compute_bitmask()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
