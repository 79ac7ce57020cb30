"""tokenizer.ggml.model = llama: ids as SentencePiece itself gives them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers.tokenization_utils_base import generate_merges

from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.checkpoint.gguf.vocabularies.sentencepiece import merges_by_score
from weft.core.errors import DataError, UsageError
from weft.text.tokenizer import Tokenizer

from ..hard_texts import hard_texts
from .corpus import LINES, western

PLACE = Path("x.gguf")
MARK = "\u2581"


def train(path: Path, **settings: Any) -> SentencePieceProcessor:
    SentencePieceTrainer.train(
        sentence_iterator=iter(western(LINES)),
        model_prefix=str(path),
        minloglevel=2,
        num_threads=1,
        **settings,
    )
    return SentencePieceProcessor(model_file=f"{path}.model")


def described(model: SentencePieceProcessor, name: str, **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes for a SentencePiece model."""
    count = model.vocab_size()
    return {
        "tokenizer.ggml.model": name,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(count)],
        "tokenizer.ggml.scores": np.array(
            [model.get_score(i) for i in range(count)], dtype=np.float32
        ),
        "tokenizer.ggml.token_type": np.array(
            [type_of(model, i) for i in range(count)], dtype=np.int32
        ),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def type_of(model: SentencePieceProcessor, index: int) -> int:
    if model.is_unknown(index):
        return 2
    if model.is_control(index):
        return 3
    if model.is_byte(index):
        return 6
    return 5 if model.is_unused(index) else 1


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceProcessor:
    """As Llama 2 was trained: BPE, text kept as it is, digits apart, bytes."""
    return train(
        tmp_path_factory.mktemp("llama") / "m",
        model_type="bpe",
        vocab_size=1100,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.99,
    )


def test_ids_are_those_of_sentencepiece(llama: SentencePieceProcessor) -> None:
    ours = read_tokenizer(described(llama, "llama"), PLACE)
    assert ours.frame == ([1], [])
    for text in hard_texts(1000):
        assert ours.encode(text, add_special=False) == llama.encode(text), ascii(text)


def test_text_comes_back(llama: SentencePieceProcessor) -> None:
    ours = read_tokenizer(described(llama, "llama"), PLACE)
    for text in hard_texts(300):
        # SentencePiece's mark and a space are one and the same
        assert ours.decode(ours.encode(text)) == text.replace(MARK, " "), ascii(text)


def test_without_the_space_before_a_text(tmp_path: Path) -> None:
    """As Gemma was trained."""
    model = train(
        tmp_path / "m",
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
    )
    ours = read_tokenizer(described(model, "llama", add_space_prefix=False), PLACE)
    for text in hard_texts(1000):
        assert ours.encode(text, add_special=False) == model.encode(text), ascii(text)


def test_merges_are_those_that_transformers_derives(llama: SentencePieceProcessor) -> None:
    count = llama.vocab_size()
    scores = {llama.id_to_piece(i): llama.get_score(i) for i in range(count)}
    vocab = {llama.id_to_piece(i): i for i in range(count)}
    assert merges_by_score(scores) == generate_merges(vocab, scores)


def test_a_file_with_merges_uses_them(llama: SentencePieceProcessor) -> None:
    result = described(llama, "llama")
    plain = read_tokenizer(result, PLACE)
    merges = [" ".join(m) for m in merges_by_score(scores_of(result))]
    result["tokenizer.ggml.merges"] = merges
    result["tokenizer.ggml.scores"] = np.zeros(llama.vocab_size(), dtype=np.float32)
    other = read_tokenizer(result, PLACE)
    for text in hard_texts(200):
        assert other.encode(text) == plain.encode(text), ascii(text)


def scores_of(result: dict[str, Any]) -> dict[str, float]:
    rows = zip(
        result["tokenizer.ggml.tokens"],
        result["tokenizer.ggml.scores"].tolist(),
        result["tokenizer.ggml.token_type"].tolist(),
        strict=True,
    )
    return {token: score for token, score, kind in rows if kind == 1}


def test_a_tokenizer_is_written_so_that_it_reads_the_same(llama: SentencePieceProcessor) -> None:
    first = read_tokenizer(described(llama, "llama"), PLACE)
    result = write_tokenizer(first, llama.vocab_size() + 7)
    assert result["tokenizer.ggml.add_space_prefix"] is True
    assert result["tokenizer.ggml.add_bos_token"] is True
    assert result["tokenizer.ggml.tokens"][-1] == f"[PAD{llama.vocab_size() + 6}]"
    types = result["tokenizer.ggml.token_type"]
    assert types[:3] == [2, 3, 3] and types.count(6) == 256 and types[-7:] == [5] * 7
    again = read_tokenizer(as_read(result), PLACE)
    for text in hard_texts(1000):
        assert again.encode(text) == first.encode(text), ascii(text)


def as_read(result: dict[str, Any]) -> dict[str, Any]:
    """Lists of numbers as a header gives them."""
    return {
        key: np.array(value) if isinstance(value, list) and not isinstance(value[0], str) else value
        for key, value in result.items()
    }


@cache
def metaspace(split: bool) -> Tokenizer:
    scores = {MARK: -5.0, "a": -6.0, "b": -7.0, "ab": -1.0, f"{MARK}a": 0.0}
    vocab = {token: index for index, token in enumerate(["<unk>", *scores])}
    backend = Backend(models.BPE(vocab, merges_by_score(scores), unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "first", split=split)
    backend.decoder = decoders.Metaspace(MARK, "first")
    return Tokenizer(backend)


def test_transformers_way_to_mark_spaces_is_written_too() -> None:
    result = write_tokenizer(metaspace(False), 6)
    assert result["tokenizer.ggml.model"] == "llama"
    assert result["tokenizer.ggml.add_space_prefix"] is True
    again = read_tokenizer(as_read(result), PLACE)
    assert again.encode("ab a", add_special=False) == metaspace(False).encode("ab a")
    with pytest.raises(UsageError, match="steps besides those for spaces .Metaspace that splits"):
        write_tokenizer(metaspace(True), 6)


def test_merges_that_no_scores_give_are_refused() -> None:
    pieces = ["<unk>", MARK, "a", "b", "c", "ab", "bc", "abc"]
    vocab = {token: index for index, token in enumerate(pieces)}
    merges = [("a", "b"), ("b", "c"), ("a", "bc")]
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", MARK)
    backend.decoder = decoders.Replace(MARK, " ")
    with pytest.raises(UsageError, match="merges do not follow from one score per piece"):
        write_tokenizer(Tokenizer(backend), 8)
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", MARK)])
    merges = merges_by_score({"a": 0.0, "b": 0.0, "c": 0.0, "ab": 3.0, "bc": 2.0, "abc": 1.0})
    backend.model = models.BPE(vocab, merges, unk_token="<unk>")
    with pytest.raises(UsageError, match=r"steps besides those for spaces \(NFKC\)"):
        write_tokenizer(Tokenizer(backend), 8)


def test_scores_must_be_one_a_token(llama: SentencePieceProcessor) -> None:
    result = described(llama, "llama", scores=np.zeros(3, dtype=np.float32))
    with pytest.raises(
        DataError, match="scores is not 1100 numbers: it must be one number per token"
    ):
        read_tokenizer(result, PLACE)
