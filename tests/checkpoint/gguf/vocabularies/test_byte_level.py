"""tokenizer.ggml.model = gpt2: ids as `transformers` and as llama.cpp's patterns give them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

import pytest
import regex
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.checkpoint.gguf.vocabularies.byte_level import SPLITS
from weft.core.errors import DataError, UsageError
from weft.text.tokenizer import Tokenizer

from ..hard_texts import hard_texts
from .corpus import LINES

PLACE = Path("x.gguf")
SPECIAL = "<|endoftext|>"
USER = "<think>"


@cache
def learnt() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary whose merges cross every border, so that each way of cutting shows."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[SPECIAL, USER],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def metadata(pre: str | None, **more: Any) -> dict[str, Any]:
    import numpy as np

    vocab, merges = learnt()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = np.ones(len(tokens), dtype=np.int32)
    types[:2] = (3, 4)
    told = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.eos_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }
    return told if pre is None else {**told, "tokenizer.ggml.pre": pre}


def backend_of(*steps: Any, nfc: bool = False, whole: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer.json as the models' own files have it, loaded by transformers."""
    vocab, merges = learnt()
    backend = Backend(models.BPE(vocab, merges, ignore_merges=whole))
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    backend.decoder = decoders.ByteLevel()
    return finished(PreTrainedTokenizerFast(tokenizer_object=backend))


def finished(tokenizer: Any) -> Any:
    """Special tokens stay text, user-defined ones are found: as ours treats them."""
    tokenizer.backend_tokenizer.add_special_tokens([SPECIAL])
    tokenizer.backend_tokenizer.add_tokens([USER])
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return tokenizer


def cut(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def to_bytes(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def expected(pre: str) -> Any:
    """The same tokenizer by another way: a class of transformers, or its parts."""
    vocab, merges = learnt()
    digits = pre_tokenizers.Digits(individual_digits=True)
    if pre == "gpt-2":
        return finished(GPT2Tokenizer(vocab=vocab, merges=merges))
    if pre == "qwen2":
        return finished(Qwen2Tokenizer(vocab=vocab, merges=merges))
    if pre == "command-r":
        return finished(CohereTokenizer(vocab=vocab, merges=merges))
    if pre == "mpt":
        return finished(GPTNeoXTokenizer(vocab=vocab, merges=merges))
    if pre == "smollm":
        return backend_of(digits, to_bytes(True))
    if pre == "llama-bpe":
        return backend_of(cut(theirs._LLAMA3_SPLIT), to_bytes(False), whole=True)
    if pre == "tekken":
        return backend_of(cut(theirs._TEKKEN_SPLIT), to_bytes(False), whole=True)
    if pre == "gpt-4o":
        return backend_of(cut(theirs._GPT4O_SPLIT), to_bytes(False))
    assert pre == "falcon"
    numbers = pre_tokenizers.Digits(individual_digits=False)
    marks = pre_tokenizers.Punctuation("contiguous")
    return backend_of(marks, to_bytes(True), numbers, cut("[0-9][0-9][0-9]"))


WITH_CLASS = (
    *("gpt-2", "qwen2", "command-r", "mpt", "smollm", "llama-bpe", "tekken", "gpt-4o", "falcon"),
)


@pytest.mark.parametrize("pre", WITH_CLASS)
def test_ids_are_those_of_transformers(pre: str) -> None:
    ours, other = read_tokenizer(metadata(pre), PLACE), expected(pre)
    for text in hard_texts(1000):
        theirs = other.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == theirs, ascii(text)


CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA_CPP = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "llama-bpe": [rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{TAIL}"],
    "qwen2": [rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{TAIL}"],
    "deepseek-coder": [
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
        "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
}
"""Patterns in llama.cpp's form: each cuts what the ones before it left."""


def pieces_of(patterns: list[str], text: str) -> list[str]:
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in parts_of(pattern, piece)]
    return pieces


def parts_of(pattern: str, piece: str) -> list[str]:
    """Matches and what lies between them."""
    parts, at = [], 0
    for match in regex.finditer(pattern, piece):
        parts += [piece[at : match.start()], match[0]]
        at = match.end()
    return [part for part in [*parts, piece[at:]] if part]


@pytest.mark.parametrize("pre", LLAMA_CPP)
def test_text_is_cut_where_llama_cpp_cuts_it(pre: str) -> None:
    """By Python's `regex` on llama.cpp's form of the patterns, and ours by the library's engine."""
    splitter = pre_tokenizers.Sequence([cut(p) for p in SPLITS[pre].patterns])
    for text in hard_texts(1000):
        # llama.cpp knows no long s; engines know letters of different years
        if "'\u017f" not in text and all(category(letter) != "Cn" for letter in text):
            ours = [piece for piece, _ in splitter.pre_tokenize_str(text)]
            assert ours == pieces_of(LLAMA_CPP[pre], text), ascii(text)


def test_deepseeks_first_kind_cuts_as_its_six_patterns_do() -> None:
    splitter = pre_tokenizers.Sequence([cut(p) for p in SPLITS["deepseek-llm"].patterns])
    found = splitter.pre_tokenize_str("Se\u00f1or \u043c\u0438\u0440! 123\n\u4e2d\u6587 x ")
    # the pattern for marks has the letters of ASCII in it (:-~) and cuts words at all others
    words = ["Se", "\u00f1", "or", " \u043c\u0438\u0440", "!", " ", "123", "\n", "\u4e2d\u6587"]
    assert [piece for piece, _ in found] == [*words, " x", " "]


SAME = {
    "llama-bpe": "llama3 llama-v3 falcon3 pixtral midm-2.0 lfm2 falcon-h1 jina-v5-nano",
    "gpt-2": "phi-2 gigachat a.x-4.0 mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de "
    "jina-v2-code jina-v1-en roberta-bpe exaone4",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez",
    "gpt-4o": "llama4 kanana2 talkie",
    "smollm": "starcoder refact",
    "mpt": "olmo",
}
"""Names of llama.cpp with the same split."""


@pytest.mark.parametrize(
    ("alias", "name"), [(alias, name) for name, group in SAME.items() for alias in group.split()]
)
def test_other_names_of_a_split_give_the_same_tokenizer(alias: str, name: str) -> None:
    tokenizers = [read_tokenizer(metadata(pre), PLACE) for pre in (alias, name)]
    assert tokenizers[0].backend.to_str() == tokenizers[1].backend.to_str()


@pytest.mark.parametrize("pre", SPLITS)
def test_text_comes_back_but_for_its_normal_form(pre: str) -> None:
    tokenizer = read_tokenizer(metadata(pre), PLACE)
    form = "NFC" if SPLITS[pre].nfc else None
    for text in hard_texts(120):
        exact = normalize(form, text) if form else text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == exact, ascii(text)


@pytest.mark.parametrize("pre", SPLITS)
def test_a_tokenizer_is_written_as_it_was_read(pre: str) -> None:
    told = metadata(pre, add_bos_token=False)
    back = write_tokenizer(read_tokenizer(told, PLACE), len(told["tokenizer.ggml.tokens"]))
    assert back["tokenizer.ggml.pre"] == pre
    for key in ("tokens", "merges", "model"):
        assert back[f"tokenizer.ggml.{key}"] == told[f"tokenizer.ggml.{key}"]
    assert back["tokenizer.ggml.token_type"] == told["tokenizer.ggml.token_type"].tolist()
    assert back["tokenizer.ggml.eos_token_id"] == 0


@pytest.mark.parametrize("pre", WITH_CLASS)
def test_a_tokenizer_of_transformers_is_written_under_the_same_name(pre: str) -> None:
    other = expected(pre)
    found = write_tokenizer(Tokenizer(other.backend_tokenizer), 2100)
    assert found["tokenizer.ggml.pre"] == pre


def test_begin_is_added_where_the_kind_or_the_file_says_so() -> None:
    more = {"bos_token_id": 0}
    assert read_tokenizer(metadata("gpt-2", **more), PLACE).frame == ([], [])
    assert read_tokenizer(metadata("llama-bpe", **more), PLACE).frame == ([0], [])
    told = metadata("llama-bpe", **more, add_bos_token=False, add_eos_token=True)
    assert read_tokenizer(told, PLACE).frame == ([], [0])


def test_special_tokens_stay_text_and_user_defined_ones_do_not() -> None:
    tokenizer = read_tokenizer(metadata("gpt-2"), PLACE)
    assert 0 not in tokenizer.encode(f"a{SPECIAL}b")
    assert 0 in tokenizer.encode(f"a{SPECIAL}b", parse_special=True)
    assert 1 in tokenizer.encode(f"a{USER}b")


def test_a_missing_kind_is_said_and_cut_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="weft"):
        tokenizer = read_tokenizer(metadata(None), PLACE)
    assert "tokenizer.ggml.pre is missing" in caplog.text
    default = read_tokenizer(metadata("default"), PLACE)
    assert tokenizer.encode("a 12345 b") == default.encode("a 12345 b")


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match="pre is 'nonsense': it must be one of gpt-2, smollm"):
        read_tokenizer(metadata("nonsense"), PLACE)
    told = metadata("gpt-2")
    del told["tokenizer.ggml.merges"]
    with pytest.raises(DataError, match="has no tokenizer.ggml.merges"):
        read_tokenizer(told, PLACE)
    with pytest.raises(DataError, match="merges is 'a b c' in one entry"):
        read_tokenizer(metadata("gpt-2", merges=["a b c"]), PLACE)
    with pytest.raises(DataError, match="cannot be built"):
        read_tokenizer(metadata("gpt-2", merges=["nowhere nothere"]), PLACE)


def test_ways_of_cutting_that_have_no_name_are_refused() -> None:
    vocab, merges = learnt()
    backend = Backend(models.BPE(vocab, merges))
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut(r"\p{Han}"), to_bytes(True)])
    with pytest.raises(UsageError, match="GGUF has no name for the way it splits text"):
        write_tokenizer(Tokenizer(backend), 2000)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(UsageError, match="it splits text by ByteLevel with settings"):
        write_tokenizer(Tokenizer(backend), 2000)
