"""A tokenizer on disk: standard files that tokenizers and transformers open, and clear errors."""

import json
import os
import resource

import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.text.material import CORPUS, HARD, trained
from weft.core.errors import DataError, DiskError
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_files import write_atomically
from weft.text.tokenizer_kinds import KINDS
from weft.text.tokenizer_training import TokenizerConfig

TEXTS = [*CORPUS[:6], *(text for name, text in HARD.items() if name != "special names")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_comes_back_the_same(kind, tmp_path):
    file = trained(kind).save(tmp_path / "deep" / "folder")
    assert file == tmp_path / "deep" / "folder" / "tokenizer.json"
    for path in (file, file.parent, str(file.parent)):
        again = Tokenizer.load(path)
        assert again.encode_batch(TEXTS) == trained(kind).encode_batch(TEXTS)
        assert again.special_tokens == trained(kind).special_tokens
        assert again.config == trained(kind).config


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizers_library_reads_the_file(kind, tmp_path):
    other = tokenizers.Tokenizer.from_file(str(trained(kind).save(tmp_path / "name.json")))
    assert [e.ids for e in other.encode_batch(TEXTS)] == trained(kind).encode_batch(TEXTS)
    assert [p.name for p in tmp_path.iterdir()] == ["name.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_folder(kind, tmp_path):
    ours = trained(kind, max_len=64)
    file = ours.save(tmp_path)
    for theirs in (
        AutoTokenizer.from_pretrained(tmp_path),
        PreTrainedTokenizerFast(tokenizer_file=str(file)),
    ):
        for text in TEXTS:
            ids = ours.encode(text, max_len=10_000)
            assert theirs(text)["input_ids"] == ids
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)
    assert (theirs.unk_token, theirs.mask_token) == ("<unknown>", "<mask>")
    assert theirs.model_max_length == 64


def test_own_names_for_special_tokens_survive_in_a_folder(tmp_path):
    config = TokenizerConfig(vocab_size=420, begin="[GO]", pad="[NIL]")
    Tokenizer.train(CORPUS, config).save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.pad_id, again.begin_id, again.special_tokens.begin) == (0, 1, "[GO]")


def test_the_roles_of_an_imported_tokenizer_come_from_its_config_or_common_names(tmp_path):
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "x": 4, "odd": 5}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    backend.enable_truncation(2)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.pad_id, tokenizer.begin_id, tokenizer.end_id) == (0, 1, 2)
    assert (tokenizer.mask_id, tokenizer.config, tokenizer.frame) == (None, None, ([], []))
    config = {"cls_token": "x", "eos_token": {"content": "odd"}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (4, 5, 0)


def test_a_truncation_that_others_left_in_the_file_is_not_silent(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("a b a b") == [0, 1, 0, 1]


def test_what_is_not_a_tokenizer_is_named(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.json: there is no such tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match=r"nowhere: there is no such tokenizer.*--train"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad\.json: is not a tokenizer\.json \(.+\)"):
        Tokenizer.load(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="it is not UTF-8 text"):
        Tokenizer.load(tmp_path / "bad.json")


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match="taken: is a file, not a folder"):
        trained().save(tmp_path / "taken")


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "tokenizer.json"
    write_atomically(file, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    """It was an OSError without a file: the message said that standard output was full."""
    file = trained().save(tmp_path / "t")
    old = file.read_text()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # EFBIG, as Python ignores SIGXFSZ
    try:
        with pytest.raises(
            DiskError, match=r"t/tokenizer.json: cannot be written \(File too large"
        ):
            trained().save(tmp_path / "t")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == old
    assert {one.name for one in file.parent.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_saved_tokenizer_is_on_disk_with_its_folders(tmp_path, monkeypatch):
    """The files were flushed, but neither their names nor those of new folders."""
    flushed = []
    real = os.fsync

    def fsync(handle):
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    trained().save(tmp_path / "new" / "t")
    assert {str(one) for one in (tmp_path, tmp_path / "new", tmp_path / "new" / "t")} < {*flushed}
    assert flushed[-1] == str(tmp_path / "new" / "t")
