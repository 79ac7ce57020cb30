"""What sentence-transformers says of a model is read, kept in every format and written back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

import weft
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.formats import convert
from weft.checkpoint.sentence_transformers import (
    LIMIT_FILE,
    MODULES_FILE,
    POOLING_FILE,
    read_pooling_files,
    write_pooling_files,
)
from weft.checkpoint.weft_folder import save_folder
from weft.core.errors import DataError, UsageError

from .families.material import shake

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TEXTS = ["a b c d e f g h", "b a", "h"]


def write(folder: Path, **files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, values in files.items():
        path = folder / {"pooling": POOLING_FILE, "limit": LIMIT_FILE}[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that takes the first token's vector, of texts of at most 6 tokens."""
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=40, num_hidden_layers=2, num_attention_heads=5,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    shake(BertModel(config)).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens(WORDS[:5])
    backend.save(str(folder / "tokenizer.json"))
    return write(folder, pooling={"pooling_mode_cls_token": True}, limit={"max_seq_length": 6})


def test_a_folder_a_gguf_file_and_a_native_folder_make_the_same_vectors(
    bert: Path, tmp_path: Path
) -> None:
    first = weft.load(bert)
    vectors_BD = first.embed(TEXTS)
    assert first.generation_config == GenerationConfig(pooling="first", max_tokens=6)
    assert first.tokenizer.report.cut_lines == 1 and first.tokenizer.report.limit == 6
    convert(bert, tmp_path / "hf", "hf")
    convert(bert, tmp_path / "weft", "weft")
    for again in (weft.load(tmp_path / "hf"), weft.load(tmp_path / "weft")):
        assert again.generation_config == first.generation_config
        torch.testing.assert_close(again.embed(TEXTS), vectors_BD)
    convert(bert, tmp_path / "x.gguf", "gguf")
    file = weft.load(tmp_path / "x.gguf")
    assert file.generation_config.pooling == "first", (
        "GGUF has a place for the pooling, none for the limit"
    )
    torch.testing.assert_close(file.embed(TEXTS[1:]), vectors_BD[1:])
    assert not torch.allclose(file.embed(TEXTS)[0], vectors_BD[0])


def test_the_tokenizer_itself_cuts_nothing(bert: Path) -> None:
    from weft.checkpoint.formats import load_tokenizer

    assert len(load_tokenizer(bert).encode(TEXTS[0])) == 10


@pytest.mark.parametrize(
    ("values", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "first+mean"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_the_pooling_is_the_one_that_is_switched_on(
    values: dict[str, Any], pooling: str, tmp_path: Path
) -> None:
    assert read_pooling_files(
        write(tmp_path, pooling=values), GenerationConfig()
    ) == GenerationConfig(pooling=pooling)


@pytest.mark.parametrize(
    "use",
    [
        GenerationConfig(),
        GenerationConfig(pooling="first"),
        GenerationConfig(pooling="last", max_tokens=3),
        GenerationConfig(max_tokens=256),
        GenerationConfig(pooling="first+max_tokens"),
        GenerationConfig(pooling="mean+Dense"),
    ],
)
def test_what_is_written_is_read_again(use: GenerationConfig, tmp_path: Path) -> None:
    write_pooling_files(tmp_path, use, width=8)
    assert read_pooling_files(tmp_path, GenerationConfig()) == use
    assert (use == GenerationConfig()) == (not list(tmp_path.iterdir())), "the rule needs no file"


def modules(*kinds: str) -> str:
    return json.dumps([{"idx": i, "type": f"a.models.{kind}"} for i, kind in enumerate(kinds)])


def test_a_layer_behind_the_pooling_is_not_passed_over(bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(bert, folder)
    (folder / MODULES_FILE).write_text(modules("Transformer", "Pooling", "Normalize"))
    assert weft.load(folder).generation_config == GenerationConfig(pooling="first", max_tokens=6)
    (folder / MODULES_FILE).write_text(modules("Transformer", "Pooling", "Dense", "Normalize"))
    with pytest.raises(UsageError, match=r"'first\+Dense': Weft has mean, first, last"):
        weft.load(folder).embed(TEXTS)


@pytest.mark.parametrize("text", ["{}x", '{"a": 1}', "[3]", '[{"kind": "Dense"}]', "[" * 9999])
def test_modules_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / MODULES_FILE).write_text(text)
    with pytest.raises(DataError, match="not a list of modules"):
        read_pooling_files(tmp_path, GenerationConfig())


def test_a_limit_must_be_a_length(tmp_path: Path) -> None:
    assert (
        read_pooling_files(write(tmp_path, limit={"max_seq_length": None}), GenerationConfig())
        == GenerationConfig()
    )
    with pytest.raises(DataError, match="max_seq_length is 'x'"):
        read_pooling_files(write(tmp_path, limit={"max_seq_length": "x"}), GenerationConfig())


def test_a_native_folder_of_earlier_days_has_no_limit(bert: Path, tmp_path: Path) -> None:
    save_folder(tmp_path, weft.load(bert).checkpoint)
    card = json.loads((tmp_path / "config.json").read_text())
    del card["use"]["max_tokens"]
    (tmp_path / "config.json").write_text(json.dumps(card))
    assert weft.load(tmp_path).generation_config == GenerationConfig(pooling="first")
