"""fairseq folders: logits as an independent forward gives them, each choice of settings; and a real
model from text to text."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.asking import beam_search
from weft.checkpoint.description import find_format
from weft.checkpoint.fairseq_files import FairseqFolder, load_tokenizer, open_fairseq
from weft.checkpoint.fairseq_header import PACKAGES, describe_model
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.fairseq import FAMILY
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.pickle_header import read_values
from weft.checkpoint.tensor_source import build_from_source
from weft.core.errors import ConfigError, DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.models.transformer import EncoderDecoder
from weft.text.batching import collate

from . import fairseq_oracle as oracle

CODES = "#version: 0.2\na b\nab c</w>\nx y</w>\n"
SOURCE = ["abc", "a@@", "b@@", "c", "xy", "x@@", "y", "d", "e"]
TARGET = ["abc", "ab@@", "a@@", "b@@", "c", "d", "e"]


def write_folder(
    folder: Path,
    args: Namespace,
    source: list[str] | None = None,
    target: list[str] | None = None,
    is_cfg: bool = True,
) -> oracle.State:
    """A folder as fairseq leaves it; the weights in it."""
    source, target = source or SOURCE, target or TARGET
    state = oracle.fresh_state(args, len(source) + 4, len(target) + 4)
    cfg = {"model": args, "task": {"source_lang": "xx", "target_lang": "yy"}, "_name": None}
    result = {"args": None, "cfg": cfg} if is_cfg else {"args": args, "cfg": None}
    torch.save(
        {**result, "model": state, "extra_state": {"epoch": 3}}, folder / "checkpoint_best.pt"
    )
    for name, pieces in (("xx", source), ("yy", target)):
        lines = "".join(f"{piece} {100 - i}\n" for i, piece in enumerate(pieces))
        (folder / f"dict.{name}.txt").write_text(lines, encoding="utf-8")
    (folder / "bpe.code").write_text(CODES, encoding="utf-8")
    return state


def build(actual: FairseqFolder, folder: Path) -> EncoderDecoder:
    config = FAMILY.read_hf(HFConfig(actual.values, folder))
    model = build_from_source(config, FAMILY.rules(config), actual.source, FAMILY.ignored)
    assert isinstance(model, EncoderDecoder)
    return model


def assert_same_logits(args: Namespace, state: oracle.State, model: EncoderDecoder) -> None:
    generator = torch.Generator().manual_seed(4)
    sources = [torch.randint(4, 11, (n,), generator=generator).tolist() for n in (9, 4, 1)]
    targets = torch.randint(4, 11, (3, 7), generator=generator)
    source_BS, lengths_B = collate(sources)
    with torch.no_grad():
        got_BTV = model(ForwardBatch(targets), ForwardBatch(source_BS, lengths_B=lengths_B))
    expected_BTV = oracle.logits(args, state, sources, targets.tolist())
    assert got_BTV.std() > 0.1
    torch.testing.assert_close(got_BTV, expected_BTV, atol=1e-4, rtol=1e-4)


AFTER = {"encoder_normalize_before": False, "decoder_normalize_before": False}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
CHANGES: dict[str, dict[str, Any]] = {
    "norm before": {},
    "norm after": AFTER,
    "three tables": {"share_decoder_input_output_embed": False},
    "gelu, unscaled": {"activation_fn": "gelu", "no_scale_embedding": True},
    "swish": {"activation_fn": "swish"},
    "norm on the embedding": {"layernorm_embedding": True},
    "learned positions": LEARNED,
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_those_of_an_independent_forward(name: str, tmp_path: Path) -> None:
    args = oracle.arguments(**CHANGES[name])
    state = write_folder(tmp_path, args, is_cfg=name != "norm after")
    assert_same_logits(args, state, build(open_fairseq(tmp_path), tmp_path))


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("pieces", [SOURCE, [*SOURCE, "ab@@"]], ids=["parted", "one table"])
def test_settings_are_those_of_the_loaded_model_without_torch(
    pieces: list[str], is_zip: bool, tmp_path: Path
) -> None:
    write_folder(tmp_path, oracle.arguments(share_all_embeddings=True), pieces, pieces)
    path = tmp_path / "checkpoint_best.pt"
    values = torch.load(path, weights_only=False)
    values["extra_state"] = {"loss": np.float64(3.5), "kind": np.dtype("f4")}
    torch.save(values, path, _use_new_zipfile_serialization=is_zip)
    assert read_values(path, PACKAGES) is not None, "torch is not needed"
    config = build(open_fairseq(tmp_path), tmp_path).config
    assert describe_model(tmp_path) == ("fairseq", config)


@pytest.mark.parametrize("pieces", [SOURCE, [*SOURCE, "ab@@"]], ids=["parted", "one table"])
def test_a_shared_table_is_parted_only_where_the_source_needs_more_ids(
    pieces: list[str], tmp_path: Path
) -> None:
    args = oracle.arguments(share_all_embeddings=True)
    state = write_folder(tmp_path, args, pieces, pieces)
    model = build(open_fairseq(tmp_path), tmp_path)
    assert (model.config.embedding.tied == "all") == (pieces is not SOURCE)
    assert_same_logits(args, state, model)


def test_a_pair_outside_the_dictionary_reads_as_the_unknown_word(tmp_path: Path) -> None:
    """abc is made by way of ab, which the dictionary has only in the target."""
    write_folder(tmp_path, oracle.arguments())
    actual = open_fairseq(tmp_path)
    size = len(SOURCE) + 4
    assert actual.source_tokenizer.encode("abc abd") == [4, size, 11, 2]
    table_VD = build(actual, tmp_path).encoder.embedding.words.weight
    assert table_VD.shape[0] == actual.source_tokenizer.vocab_size == size + 1
    assert torch.equal(table_VD[size], table_VD[3])


def test_how_it_is_used_and_that_it_is_only_read(tmp_path: Path) -> None:
    write_folder(tmp_path, oracle.arguments())
    actual = open_fairseq(tmp_path)
    use = FAMILY.read_generation(HFConfig(actual.values, tmp_path))
    assert (use.start, use.ends, use.banned) == (2, (2,), (1,))
    with pytest.raises(UsageError, match="the fairseq family can only be read"):
        export_config(FAMILY, build(actual, tmp_path).config)
    assert find_format(tmp_path) == "fairseq" and find_format(tmp_path / "dict.xx.txt") is None
    (tmp_path / "checkpoint_best.pt").rename(tmp_path / "model.pt")
    assert find_format(tmp_path) == "fairseq"


def test_what_only_the_code_around_a_model_says_is_read_from_weft_json(tmp_path: Path) -> None:
    """A dictionary with a capital letter, whose authors lower-case what they give it."""
    write_folder(tmp_path, oracle.arguments(), source=["a", "A", "b@@", "c", "x", "y", "d"])
    assert load_tokenizer(tmp_path).encode("A a") == [5, 4, 2]
    (tmp_path / "weft.json").write_text('{"lowercase": true}')
    assert load_tokenizer(tmp_path).encode("A a") == [4, 4, 2]
    (tmp_path / "weft.json").write_text('{"lower": true}')
    with pytest.raises(ConfigError, match="lower.*lowercase"):
        open_fairseq(tmp_path)


def test_dictionaries_of_equal_size_are_told_apart_by_the_languages(tmp_path: Path) -> None:
    other = [piece.replace("c", "z") for piece in SOURCE]
    write_folder(tmp_path, oracle.arguments(), SOURCE, other)
    assert open_fairseq(tmp_path).source_tokenizer.backend.token_to_id("abc</w>") == 4
    write_folder(tmp_path, oracle.arguments(), SOURCE, other, is_cfg=False)
    with pytest.raises(DataError, match="dictionaries of xx 13, yy 13 pieces and embeddings of 13"):
        open_fairseq(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "lstm"}, "arch is 'lstm'"),
        ({"cross_self_attention": True}, "cross_self_attention is True"),
        ({"adaptive_softmax_cutoff": [5]}, r"adaptive_softmax_cutoff is \[5\]"),
        ({"decoder_normalize_before": False}, "decoder_normalize_before is False"),
        ({"decoder_embed_dim": 48}, "encoder_embed_dim is 24 and decoder_embed_dim is 48"),
        ({"activation_fn": "tanh"}, "activation_fn is 'tanh'"),
        ({**LEARNED, "max_target_positions": 9}, "max_target_positions is 9"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {**vars(oracle.arguments(**changes)), "source_vocab_size": 9, "target_vocab_size": 9}
    with pytest.raises(DataError, match=message):
        FAMILY.read_hf(HFConfig(values, tmp_path))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "has no weights under 'model'"),
        ({"model": {"a": 1}}, "has no weights under 'model'"),
        ({"model": {"a": torch.ones(1)}}, "has no encoder and decoder"),
    ],
)
def test_other_checkpoints_are_refused(value: Any, message: str, tmp_path: Path) -> None:
    write_folder(tmp_path, oracle.arguments())
    torch.save(value, tmp_path / "checkpoint_best.pt")
    with pytest.raises(DataError, match=message):
        open_fairseq(tmp_path)


def test_settings_are_needed(tmp_path: Path) -> None:
    state = write_folder(tmp_path, oracle.arguments())
    torch.save({"model": state, "args": None}, tmp_path / "checkpoint_best.pt")
    with pytest.raises(DataError, match="has no model settings"):
        open_fairseq(tmp_path)
    (tmp_path / "bpe.code").unlink()
    write_folder(tmp_path, oracle.arguments())
    (tmp_path / "checkpoint_best.pt").unlink()
    with pytest.raises(DataError, match=r"has none of checkpoint_best\.pt"):
        open_fairseq(tmp_path)


WHEEL = "detransliterator-0.0.2-py3-none-any.whl"
ASSETS = "detransliterator/assets"


@pytest.fixture(scope="session")
def nko_wheel(pytestconfig: pytest.Config) -> Path:
    """The package that carries the N'Ko models, downloaded once."""
    folder = pytestconfig.cache.mkdir("wheels")
    if not (folder / WHEEL).is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "detransliterator==0.0.2", "--dest", folder], check=True)
    return folder / WHEEL


def unpack(wheel: Path, name: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.startswith(f"{ASSETS}/{name}/"):
                (folder / Path(member).name).write_bytes(archive.read(member))
    return folder


def translate(actual: FairseqFolder, model: EncoderDecoder, texts: list[str]) -> list[str]:
    """As the package does it: lower case, beam 5, at most 200 pieces."""
    sources = actual.source_tokenizer.encode_batch([text.lower() for text in texts])
    best = beam_search(model, [[2]] * len(texts), 200, 2, 5, 1.0, sources, banned=(1,))
    return [actual.target_tokenizer.decode(one.ids) for one, *_ in best]


def distance(one: str, other: str) -> int:
    """Characters put in, taken out or changed (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
    return row[-1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["latin2nqo_001.35", "latin2nqo_001.38"])
def test_the_nko_models_write_what_their_readme_asserts(
    name: str, nko_wheel: Path, tmp_path: Path
) -> None:
    folder = unpack(nko_wheel, name, tmp_path)
    actual = open_fairseq(folder)
    model = build(actual, folder)
    expected = "\u07e1\u07ce\u07db\u07ca\u07eb \u07d8\u07ce\u07f2\u07d3\u07ce\u07e6\u07ca"
    assert translate(actual, model, ["Musa Dunbuya"]) == [expected]
    with zipfile.ZipFile(nko_wheel) as archive:
        sides = [
            archive.read(f"{ASSETS}/test_data/diane_parallel_002.{side}").decode().splitlines()
            for side in ("bam-g-tonal", "nqo")
        ]
    # longer lines are cut at 200 pieces; what else differs is mostly the digits of verse numbers
    pairs = [pair for pair in zip(*sides, strict=True) if 20 < len(pair[1]) < 150][::150][:10]
    got = translate(actual, model, [latin for latin, _ in pairs])
    expected_lines = [nko.strip() for _, nko in pairs]
    errors = sum(distance(a.strip(), b) for a, b in zip(got, expected_lines, strict=True))
    assert errors / sum(map(len, expected_lines)) < 0.06
