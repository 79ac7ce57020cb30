"""Marian's pair: each side is segmented by its own model, both have the ids of one table."""

import json
import pickle

import pytest
from transformers import MarianTokenizer

from tests.text.hard_strings import hard_strings
from tests.text.hf.families import llama, marian
from tests.text.hf.folders import spm_bytes, write
from weft.core.errors import DataError, UsageError
from weft.text.hf import load_tokenizer
from weft.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = marian(tmp_path_factory.mktemp("marian"))
    return load_tokenizer(folder, "marian"), MarianTokenizer.from_pretrained(folder)


def test_the_target_side_has_the_ids_of_the_original(pair):
    ours, theirs = pair
    texts = list(hard_strings(1000))
    expected = theirs(text_target=texts, split_special_tokens=True)["input_ids"]
    assert ours.target.encode_batch(texts) == expected
    assert ours.encode_batch(texts) != expected


def test_generated_ids_become_text_on_the_target_side(pair):
    ours, theirs = pair
    for text in hard_strings(200, seed=5):
        ids = ours.target.encode(text)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == ours.target.decode(ids)
        assert ours.decode(ids).strip() == expected


@pytest.mark.parametrize(
    "text",
    [">>fra<< the cat", ">>fra<<the cat", ">>deu_Latn<<   x", "a >>fra<< b", ">>fra<<",
     ">>fra<<>>fra<< a", ">>fra<<<", ">>fra", "fra<<"],
)  # fmt: skip
def test_a_language_code_is_one_token_at_the_start_of_a_text(pair, text):
    ours, theirs = pair
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert (ours.backend.token_to_id(">>fra<<") in ours.encode(text)) == text.startswith(">>fra<<")


def test_an_unknown_language_code_stays_text(pair):
    ours, theirs = pair
    assert theirs.unk_token_id in theirs(">>xxx<< the")["input_ids"]
    assert ours.unknown_id not in ours.encode(">>xxx<< the")


def test_characters_of_the_other_side_are_found_only_as_a_whole_run(pair):
    ours, theirs = pair
    texts = ["7", "77", "4 7 44", "3.14159", "2024", "x7y", "\u00e47", "7\u00e4"]
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]
    assert ours.pieces(ours.encode("7", add_special=False))[-1] == " 7 "


def test_a_piece_without_an_id_is_spelled_in_pieces_that_have_one(tmp_path):
    folder = marian(tmp_path)
    table = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    spelled = next(name for name in table if name == "\u2581the")
    table["\u2581gone"] = table.pop(spelled)
    (folder / "vocab.json").write_text(json.dumps(table))
    ours, theirs = load_tokenizer(folder), MarianTokenizer.from_pretrained(folder)
    assert theirs("the cat")["input_ids"][0] == theirs.unk_token_id
    assert ours.unknown_id not in ours.encode("the cat")
    texts = [text for text in hard_strings(1000) if "the" not in text]
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]


def test_two_tables_of_ids_are_kept_apart(tmp_path):
    folder = marian(tmp_path)
    table = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    other = {name: len(table) - 1 - index for name, index in table.items()}
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True}
    write(folder, "marian", config, target_vocab__json=other)
    ours, theirs = load_tokenizer(folder), MarianTokenizer.from_pretrained(folder)
    texts = list(hard_strings(300))
    expected = theirs(text_target=texts, split_special_tokens=True)["input_ids"]
    result = ours.target.encode_batch(texts)
    # the original takes the end's id from the source's table
    assert [row[:-1] for row in result] == [row[:-1] for row in expected]
    assert ours.decode(result[5]) == ours.target.decode(result[5])


def test_both_sides_survive_saving_and_copying(pair, tmp_path):
    ours, _ = pair
    ours.save(tmp_path)
    copies = [Tokenizer.load(tmp_path), load_tokenizer(tmp_path), pickle.loads(pickle.dumps(ours))]
    texts = hard_strings(300, seed=7)
    for copy in copies:
        assert copy.target is not copy
        assert copy.encode_batch(texts) == ours.encode_batch(texts)
        assert copy.target.encode_batch(texts) == ours.target.encode_batch(texts)


def test_two_sides_do_not_fit_one_file(pair, tmp_path):
    with pytest.raises(
        UsageError, match=r"one\.json is one file, but this tokenizer has two sides"
    ):
        pair[0].save(tmp_path / "one.json")


def test_all_other_tokenizers_are_their_own_target(tmp_path):
    ours = load_tokenizer(llama(tmp_path))
    assert ours.target is ours


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"source__spm": spm_bytes("bpe")}, r"source\.spm: is a bpe model"),
        ({"vocab__json": {"a": 0}}, r"vocab\.json: has no '<unk>'"),
        ({"vocab__json": {"<unk>": 0, "a": 0}}, "two tokens have the same id"),
        ({"vocab__json": {"<unk>": "0"}}, "the id of '<unk>' is '0'"),
        ({"vocab__json": {"<unk>": 0, "a": 10**9}}, "has 2 tokens with ids up to 1000000000"),
    ],
)
def test_files_that_cannot_be_a_pair_are_refused(files, reason, tmp_path):
    with pytest.raises(DataError, match=reason):
        load_tokenizer(write(marian(tmp_path), "marian", None, **files))
