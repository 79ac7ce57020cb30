"""BPE-dropout: with 0 the library's ids, with 1 the characters, in between random by seed."""

import random

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.text.material import CORPUS, HARD, trained
from weft.core.errors import UsageError
from weft.text.bpe_dropout import BpeDropout
from weft.text.tokenizer import Tokenizer

TEXT = "the cat sat on the mat and ate 12 apples 我吃了苹果"


@given(st.one_of(st.text(), st.sampled_from([*CORPUS, *HARD.values()])))
def test_without_dropout_the_ids_are_those_of_the_library(text):
    tokenizer = trained()
    expected = tokenizer.encode(text, add_special=False)
    assert tokenizer.bpe_dropout.encode(text, 0.0, random.Random(0)) == expected


def test_with_full_dropout_nothing_is_joined():
    tokenizer = trained()
    [ids] = tokenizer.encode_batch([TEXT], dropout=1.0, rng=random.Random(0), add_special=False)
    assert tokenizer.pieces(ids) == list(TEXT)


@given(st.text(), st.floats(0.01, 1), st.integers())
def test_every_spelling_decodes_to_the_text(text, dropout, seed):
    tokenizer = trained()
    [ids] = tokenizer.encode_batch([text], dropout=dropout, rng=random.Random(seed))
    assert tokenizer.decode(ids) == text


def test_the_seed_decides_the_spelling():
    tokenizer = trained()
    spell = [
        tokenizer.encode_batch([TEXT] * 3, dropout=0.3, rng=random.Random(s)) for s in (1, 1, 2)
    ]
    assert spell[0] == spell[1] != spell[2]
    assert spell[0][0] != spell[0][1], "each reading of a text is spelled anew"


def test_more_dropout_makes_more_tokens():
    tokenizer, counts = trained(), []
    for dropout in (0.01, 0.3, 0.9):
        rows = tokenizer.encode_batch([TEXT] * 20, dropout=dropout, rng=random.Random(0))
        counts.append(sum(map(len, rows)))
    assert counts == sorted(set(counts))


def test_the_byte_alphabet_of_others_works_too():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    ours, tokenizer = BpeDropout(backend), Tokenizer(backend)
    for text in CORPUS[:6]:
        assert ours.encode(text, 0.0, random.Random(0)) == tokenizer.encode(text)
        assert tokenizer.decode(ours.encode(text, 0.5, random.Random(0))) == text


def test_a_lowercasing_tokenizer_lowers_before_it_drops():
    tokenizer = trained(lowercase=True)
    [ids] = tokenizer.encode_batch(["THE Cat"], dropout=0.5, rng=random.Random(0))
    assert tokenizer.decode(ids) == "the cat"


@pytest.mark.parametrize("kind", ["word", "unigram", "character", "byte"])
def test_tokenizers_without_merges_are_refused(kind):
    with pytest.raises(UsageError, match=r"dropout needs a tokenizer with merges.*kind 'bpe'"):
        trained(kind).encode_batch(["a"], dropout=0.1, rng=random.Random(0))


def test_bpe_that_marks_word_parts_is_refused():
    model = models.BPE({"a": 0, "b@": 1, "ab@": 2}, [("a", "b@")], end_of_word_suffix="@")
    with pytest.raises(UsageError, match="marks parts of words"):
        BpeDropout(tokenizers.Tokenizer(model))


@pytest.mark.parametrize(("dropout", "rng"), [(0.1, None), (1.5, random.Random(0))])
def test_dropout_needs_a_share_and_a_generator(dropout, rng):
    with pytest.raises(UsageError, match=f"dropout is {dropout} with rng=.*between 0 and 1"):
        trained().encode_batch(["a"], dropout=dropout, rng=rng)
