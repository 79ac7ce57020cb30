"""tokenizer.ggml.model = t5: ids as SentencePiece and as `transformers` give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers.models.t5.tokenization_t5 import T5Tokenizer

from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.core.errors import DataError, UsageError
from weft.text.tokenizer import Tokenizer

from ..hard_texts import hard_texts
from .test_sentencepiece import MARK, as_read, described, train

PLACE = Path("x.gguf")
IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceProcessor:
    """Text kept as it is, spaces too."""
    return train(
        tmp_path_factory.mktemp("plain") / "m",
        vocab_size=430,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        **IDS,
    )


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceProcessor:
    """As T5 was trained: characters mapped to others, spaces tidied."""
    return train(tmp_path_factory.mktemp("usual") / "m", vocab_size=430, **IDS)


def charsmap(model: SentencePieceProcessor) -> bytes:
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.serialized_model_proto())
    return proto.normalizer_spec.precompiled_charsmap


def t5_described(model: SentencePieceProcessor) -> dict[str, Any]:
    return described(
        model,
        "t5",
        remove_extra_whitespaces=True,
        add_space_prefix=True,
        precompiled_charsmap=np.frombuffer(charsmap(model), dtype=np.uint8),
        padding_token_id=0,
        eos_token_id=1,
        unknown_token_id=2,
    )


def test_ids_are_those_of_sentencepiece_where_text_is_kept(plain: SentencePieceProcessor) -> None:
    ours = read_tokenizer(described(plain, "t5", unknown_token_id=2, eos_token_id=1), PLACE)
    assert ours.frame == ([], [1])
    tied = 0
    for text in filter(spells_nothing_special, hard_texts(1000)):
        actual, expected = ours.encode(text, add_special=False), plain.encode(text)
        if actual != expected:
            # runs of one letter: several ways of the same score, summed in another precision
            scores = [sum(map(plain.get_score, ids)) for ids in (actual, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-6), ascii(text)
            tied += 1
    assert tied < 10


def spells_nothing_special(text: str) -> bool:
    """Text that spells a control token is cut there, which SentencePiece does not do."""
    return not any(name in text for name in ("</s>", "<pad>", "<unk>", "<0x"))


def test_ids_are_those_of_transformers(usual: SentencePieceProcessor) -> None:
    ours = read_tokenizer(t5_described(usual), PLACE)
    vocab = [(usual.id_to_piece(i), usual.get_score(i)) for i in range(usual.vocab_size())]
    theirs = T5Tokenizer(vocab=vocab, extra_ids=0, _spm_precompiled_charsmap=charsmap(usual))
    theirs.backend_tokenizer.encode_special_tokens = True
    for text in hard_texts(1000):
        if spells_nothing_special(text) and MARK not in text:
            expected = theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special=False) == expected, ascii(text)


def test_ids_are_sentencepieces_for_ordinary_text(usual: SentencePieceProcessor) -> None:
    ours = read_tokenizer(t5_described(usual), PLACE)
    for text in ["Hello  world ", " \u00fcber \ufb01sh\u3000x", "\uff21\u00bd 12\tand\n\nmore", ""]:
        assert ours.encode(text, add_special=False) == usual.encode(text), ascii(text)


def test_text_that_spells_a_control_token_stays_text(usual: SentencePieceProcessor) -> None:
    ours = read_tokenizer(t5_described(usual), PLACE)
    for text in ("</s>", "a</s>b", "<pad>", "x <unk> y", "</s></s>"):
        ids = ours.encode(text, add_special=False)
        assert not {0, 1} & set(ids), (text, ours.pieces(ids))
    assert ours.encode("a</s>", add_special=False, parse_special=True)[-1] == 1


def test_a_tokenizer_is_written_so_that_it_reads_the_same(usual: SentencePieceProcessor) -> None:
    first = read_tokenizer(t5_described(usual), PLACE)
    result = write_tokenizer(first, 433)
    assert result["tokenizer.ggml.precompiled_charsmap"] == charsmap(usual)
    assert result["tokenizer.ggml.add_eos_token"] and not result["tokenizer.ggml.add_bos_token"]
    data = result["tokenizer.ggml.precompiled_charsmap"]
    result["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(data, dtype=np.uint8)
    again = read_tokenizer(as_read(result), PLACE)
    for text in hard_texts(1000):
        assert again.encode(text) == first.encode(text), ascii(text)


def test_transformers_own_t5_is_written_too(usual: SentencePieceProcessor) -> None:
    vocab = [(usual.id_to_piece(i), usual.get_score(i)) for i in range(usual.vocab_size())]
    theirs = T5Tokenizer(vocab=vocab, extra_ids=0, _spm_precompiled_charsmap=charsmap(usual))
    result = write_tokenizer(Tokenizer(theirs.backend_tokenizer), 430)
    assert result["tokenizer.ggml.model"] == "t5"
    assert result["tokenizer.ggml.remove_extra_whitespaces"] is True
    assert result["tokenizer.ggml.unknown_token_id"] == 2


def test_steps_that_gguf_has_no_word_for_are_refused() -> None:
    backend = Backend(models.Unigram([("<unk>", 0.0), (MARK, -1.0), ("a", -2.0)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(MARK)
    backend.normalizer = normalizers.Replace(Regex("[0-9]"), "0")
    with pytest.raises(UsageError, match=r"it has steps besides those for spaces \(Replace\)"):
        write_tokenizer(Tokenizer(backend), 3)


def test_what_cannot_be_read_is_named(plain: SentencePieceProcessor) -> None:
    result = described(plain, "t5")
    bad = {**result, "tokenizer.ggml.precompiled_charsmap": np.arange(64, dtype=np.uint8)}
    with pytest.raises(DataError, match="precompiled_charsmap cannot be used"):
        read_tokenizer(bad, PLACE)
    del result["tokenizer.ggml.scores"]
    with pytest.raises(DataError, match="has no tokenizer.ggml.scores"):
        read_tokenizer(result, PLACE)
