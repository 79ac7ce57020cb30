"""Training streams: eight times the corpus takes the same memory, and needs no torch."""

import subprocess
import sys

import pytest

CHILD = """
import random, resource, sys
from weft.text.settings import TokenizerConfig
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
