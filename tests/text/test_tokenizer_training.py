"""Tokenizer settings, the line sample, and training in constant memory without torch."""

import subprocess
import sys

import pytest

from weft.core.errors import ConfigError
from weft.text.tokenizer_training import MAX_RECORD, LineSample, TokenizerConfig

CHILD = """
import random, resource, sys
from weft.text.tokenizer_training import TokenizerConfig
from weft.text.tokenizer import Tokenizer

kind, megabytes, sample = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(0)
letters = "abcdefghijklmnopqrstuvwxyz"
known = ["".join(rng.choices(letters, k=rng.randrange(2, 10))) for _ in range(3000)]

def lines():
    # words of a language, and in every line a name that comes up nowhere else
    for _ in range(int(megabytes * 1e6 / 60)):
        yield " ".join(rng.choices(known, k=8)) + f" {rng.getrandbits(32):x}"

Tokenizer.train(lines(), TokenizerConfig(kind=kind, vocab_size=600, sample_bytes=sample << 20))
assert "torch" not in sys.modules
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak_megabytes(kind, megabytes, sample):
    arguments = [sys.executable, "-c", CHILD, kind, str(megabytes), str(sample)]
    return float(subprocess.run(arguments, capture_output=True, check=True, text=True).stdout)


def test_memory_stays_flat_as_the_corpus_grows():
    small, large = peak_megabytes("bpe", 2, sample=1), peak_megabytes("bpe", 16, sample=1)
    assert large < small * 1.1, f"{small:.0f} MB for the corpus, {large:.0f} MB for 8 times as much"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "byte"])
def test_memory_stays_flat_with_a_larger_sample(kind):
    small, large = peak_megabytes(kind, 8, sample=4), peak_megabytes(kind, 64, sample=4)
    assert large < small * 1.1, f"{small:.0f} MB for the corpus, {large:.0f} MB for 8 times as much"


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bpp"}, "'bpp' is not a known kind of tokenizer. Did you mean 'bpe'"),
        (
            {"vocab_size": 200},
            "vocab_size is 200 but the special tokens and the 256 bytes take 261",
        ),
        ({"vocab_size": 5, "byte_fallback": False}, "special tokens take 5 ids.*more than 5"),
        ({"kind": "byte", "byte_fallback": False}, "kind is 'byte': bytes are all it has"),
        ({"end": "end"}, "special token 'end' could be ordinary text"),
        ({"end": "<>"}, "special token '<>' could be ordinary text"),
        ({"extra_special": ("<0x41>",)}, "special token '<0x41>' could be ordinary text"),
        ({"extra_special": ("<pad>",)}, "special token '<pad>' is used twice"),
        ({"max_len": 0}, "max_len is 0"),
        ({"normalise": "nfx"}, "normalise is 'nfx': allowed are none, nfc, nfkc"),
        ({"vocab_sise": 300}, "Did you mean 'vocab_size'"),
    ],
)
def test_settings_that_cannot_work_say_why(settings, message):
    with pytest.raises(ConfigError, match=message):
        TokenizerConfig.from_dict(settings)


def test_special_tokens_come_first_and_bytes_after_them():
    config = TokenizerConfig(extra_special=("<de>", "<|user|>"))
    assert config.plan.reserved[:8] == (
        "<pad>", "<begin>", "<end>", "<unknown>", "<mask>", "<de>", "<|user|>", "<0x00>",
    )  # fmt: skip
    assert len(config.plan.reserved) == 7 + 256


def test_only_words_are_unknown_by_default():
    falls = {k: TokenizerConfig(kind=k).falls_back for k in ("character", "word", "bpe", "byte")}
    assert falls == {"character": True, "word": False, "bpe": True, "byte": True}
    assert TokenizerConfig(kind="word", byte_fallback=True).falls_back


# --- the line sample ------------------------------------------------------------------------


def kept(lines, max_bytes, seed=0):
    with LineSample(max_bytes, seed) as sample:
        sample.fill(lines)
        assert list(sample) == list(sample), "a sample can be read more than once"
        return list(sample), sample


def test_everything_is_kept_in_order_while_it_fits():
    lines = [f"line {i} \u6211\nwith a break" for i in range(50)]
    result, sample = kept(lines, max_bytes=10_000)
    assert result == lines
    assert (sample.seen_lines, sample.kept_records, sample.was_thinned) == (50, 50, False)


def test_a_sample_is_bounded_and_ordered():
    lines = [f"{i:06d}" for i in range(20_000)]
    result, sample = kept(lines, max_bytes=6_000)
    assert sum(map(len, result)) <= 6_000
    assert result == sorted(result)
    assert sample.was_thinned
    assert sample.seen_lines == 20_000
    assert sample.kept_records == len(result)


def test_a_sample_is_drawn_evenly_from_the_whole_corpus():
    """Every tenth of the corpus is a tenth of the sample, give or take 4 standard deviations."""
    lines = [f"{i:06d}" for i in range(40_000)]
    result, _ = kept(lines, max_bytes=12_000)
    share = 1 / 10
    spread = 4 * (share * (1 - share) / len(result)) ** 0.5
    for tenth in (0, 5, 9):
        count = sum(tenth * 4_000 <= int(line) < (tenth + 1) * 4_000 for line in result)
        assert count / len(result) == pytest.approx(share, abs=spread)


def test_the_same_seed_draws_the_same_lines_and_another_seed_draws_others():
    lines = [f"{i:06d}" for i in range(5_000)]
    first, again, other = (kept(lines, 3_000, seed)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_a_line_longer_than_the_whole_sample_is_kept_in_parts():
    line = "x" * (MAX_RECORD * 5 + 3)
    result, _ = kept([line], max_bytes=MAX_RECORD * 2)
    assert 0 < len(result) <= 2
    assert all(set(part) == {"x"} and len(part) <= MAX_RECORD for part in result)
