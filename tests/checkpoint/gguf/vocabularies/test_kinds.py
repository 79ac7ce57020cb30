"""What all kinds of tokenizer share: roles, frames, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.special_ids import read_special_ids
from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.core.errors import DataError, UsageError
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

from ..tiny import tokenizer

PLACE = Path("x.gguf")


def metadata(**more: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary of a few tokens."""
    result = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "<tool>"],
        "scores": np.array([0, 0, 0, -3, -4, -5, -1, 0], dtype=np.float32),
        "token_type": np.array([2, 3, 3, 1, 1, 1, 1, 4], dtype=np.int32),
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in result.items() if value is not None}


def test_roles_come_from_the_file_or_from_customary_names() -> None:
    named = read_tokenizer(metadata(bos_token_id=5, eos_token_id=4, padding_token_id=3), PLACE)
    assert (named.begin_id, named.end_id, named.pad_id, named.unknown_id) == (5, 4, 3, 0)
    customary = read_tokenizer(metadata(), PLACE)
    assert (customary.begin_id, customary.end_id, customary.pad_id) == (1, 2, None)
    # an id outside the vocabulary means that there is none
    outside = read_tokenizer(metadata(eos_token_id=99, padding_token_id=2**32 - 1), PLACE)
    assert (outside.end_id, outside.pad_id) == (2, None)


def test_a_file_without_types_has_special_tokens_by_their_roles() -> None:
    result = metadata(token_type=None, bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    actual = read_tokenizer(result, PLACE)
    assert 2 not in actual.encode("a</s>")
    assert actual.encode("a</s>", parse_special=True)[-1] == 2


def test_begin_and_end_go_around_one_text_and_two() -> None:
    actual = read_tokenizer(metadata(add_eos_token=True), PLACE)
    assert actual.encode("ab") == [1, 3, 6, 2]
    assert actual.backend.encode("ab", "a").ids == [1, 3, 6, 2, 3, 4, 2]
    assert actual.backend.encode("ab", "a").type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_empty_tokens_get_names() -> None:
    result = metadata(tokens=["<unk>", "<s>", "</s>", "", "a", "b", "ab", ""])
    actual = read_tokenizer(result, PLACE)
    assert actual.pieces([3, 7]) == ["[EMPTY_3]", "[EMPTY_7]"]


REFUSED = {
    "kind": ({"model": "rwkv"}, "tokenizer.ggml.model is 'rwkv': Weft reads gpt2, llama, t5, bert"),
    "no kind": ({"model": None}, "tokenizer.ggml.model is None"),
    "no tokens": ({"tokens": None}, "has no tokenizer: tokenizer.ggml.tokens is missing"),
    "numbers": ({"tokens": np.arange(3)}, "has no tokenizer"),
    "twins": ({"tokens": ["a", "b", "a"]}, "token 'a' has two ids, 0 and 2"),
    "types": ({"token_type": np.ones(3, dtype=np.int32)}, "one number for each of 8 tokens"),
    "flag": ({"add_bos_token": 1}, "add_bos_token is 1: it must be true or false"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_named(what: str) -> None:
    changes, message = REFUSED[what]
    with pytest.raises(DataError, match=message):
        read_tokenizer(metadata(**changes), PLACE)


def test_kinds_that_gguf_does_not_have_are_refused() -> None:
    lines = ["some words to learn from", "and some more of them"] * 20
    for kind in ("bpe", "unigram", "character", "word", "byte"):
        ours = Tokenizer.train(lines, TokenizerConfig(kind=kind, vocab_size=320))
        with pytest.raises(UsageError, match="cannot be written into a GGUF file: its kind"):
            write_tokenizer(ours, 320)
    with pytest.raises(UsageError, match="its kind .WordLevel"):
        write_tokenizer(Tokenizer(Backend(models.WordLevel({"a": 0}, unk_token="a"))), 1)


def test_tokens_that_take_in_spaces_are_refused() -> None:
    other = Tokenizer(Backend.from_str(tokenizer().backend.to_str()))
    other.backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    with pytest.raises(UsageError, match="its token '<mask>' includes the spaces around it"):
        write_tokenizer(other, 290)


def test_two_sides_are_refused() -> None:
    other = Tokenizer(tokenizer().backend, target=Tokenizer(tokenizer().backend))
    with pytest.raises(UsageError, match="source and target have different vocabularies"):
        write_tokenizer(other, 290)


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match="has an id 27[0-9] but the model has 100 tokens"):
        write_tokenizer(tokenizer(), 100)


def test_ends_of_a_text_are_all_tokens_that_mean_it() -> None:
    tokens = ["<s>", "<|im_end|>", "<|endoftext|>", "a", "<|eot_id|>"]
    types = np.array([3, 3, 3, 1, 1], dtype=np.int32)
    result = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert read_special_ids(result) == {"eos_token_id": [1, 2]}
    result |= {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 3}
    assert read_special_ids(result)["eos_token_id"] == [2, 3, 1]
    result |= {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.padding_token_id": 77}
    assert read_special_ids(result)["bos_token_id"] == 0 and "pad_token_id" not in read_special_ids(
        result
    )
    assert read_special_ids({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": 0}) == {
        "eos_token_id": 0
    }
