"""SentencePiece models give the ids of SentencePiece itself."""

import json

import pytest
from sentencepiece import sentencepiece_model_pb2 as proto
from transformers import AutoTokenizer

from tests.text.hard_strings import hard_strings
from tests.text.hf.families import llama, t5
from tests.text.hf.folders import SPM, entry, oracle, pieces_of, spm_bytes, write
from weft.core.errors import DataError
from weft.text.hf import load_tokenizer
from weft.text.hf.sentencepiece import split_pattern
from weft.text.hf.sentencepiece_model import parse_model

SPACE = "\u2581"


@pytest.mark.parametrize("kind", ["llama", "bpe", "unigram", "unigram-bytes", "unigram-plain"])
def test_plain_text_has_the_ids_of_sentencepiece(kind, tmp_path):
    data = spm_bytes(kind)
    ours = load_tokenizer(write(tmp_path, "llama", None, tokenizer__model=data))
    theirs, texts = oracle(data), list(hard_strings(1500, names=True))
    if parse_model(data).charsmap:
        # the library's charsmap takes a grapheme at a time: what it changes otherwise is left out
        normalize = ours.backend.normalizer.normalize_str
        texts = [text for text in texts if normalize(text) == theirs.normalize(text)]
    assert len(texts) > 1200
    assert ours.encode_batch(texts, add_special=False) == theirs.encode(texts)


@pytest.mark.parametrize("kind", ["llama", "gemma", "unigram-bytes"])
def test_ids_become_the_text_that_sentencepiece_gives(kind, tmp_path):
    data = spm_bytes(kind)
    ours = load_tokenizer(write(tmp_path, "llama", None, tokenizer__model=data))
    theirs = oracle(data)
    for text in hard_strings(500, seed=3):
        ids = theirs.encode(text)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)


def test_symbols_with_spaces_are_found_in_runs_of_spaces(tmp_path):
    data = spm_bytes("spaces")
    ours = load_tokenizer(write(tmp_path, "gemma", None, tokenizer__model=data))
    texts = [*hard_strings(1000), "a" + " " * 7 + "b", "<2mass>  x\n\n\ny", SPACE * 5]
    assert ours.encode_batch(texts, add_special=False) == oracle(data).encode(texts)


def test_turn_marks_are_special_even_where_the_file_calls_them_symbols(tmp_path):
    ours = load_tokenizer(write(tmp_path, "gemma", None, tokenizer__model=spm_bytes("gemma")))
    turn = ours.backend.token_to_id("<start_of_turn>")
    assert turn not in ours.encode("<start_of_turn>user")
    assert turn in ours.encode("<start_of_turn>user", parse_special=True)


def test_transformers_drops_a_first_space_and_the_config_decides_who_is_followed(tmp_path):
    """`legacy: false` asks for the newer way: a text that begins with a space loses one."""
    ours = load_tokenizer(llama(tmp_path / "a", legacy=None))
    newer = load_tokenizer(llama(tmp_path / "b", legacy=False))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "a")
    texts = list(hard_strings(1000))
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    rows = zip(texts, ours.encode_batch(texts), expected, strict=True)
    differ = [text for text, mine, other in rows if mine != other]
    assert differ == [text for text in texts if text.startswith((" ", SPACE))]
    assert ours.pieces(ours.encode("  x", add_special=False))[0] == SPACE * 2
    assert newer.encode(" x") == newer.encode("x") != ours.encode(" x")
    assert ours.decode(ours.encode("<s>x", parse_special=True)) == "x"


def test_a_config_can_leave_out_the_space_in_front(tmp_path):
    data = spm_bytes("llama")
    folder = write(tmp_path, "llama", {"add_prefix_space": False}, tokenizer__model=data)
    without = load_tokenizer(folder)
    assert not without.pieces(without.encode("the", add_special=False))[0].startswith(SPACE)


def test_a_unigram_model_does_not_find_special_names_in_text(tmp_path):
    ours = load_tokenizer(t5(tmp_path))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    wide = "\uff1c/s\uff1e"
    assert theirs(wide)["input_ids"].count(1) == 2
    for text in (wide, "</s>", "a<extra_id_7>b", "<pad><unk>"):
        assert ours.encode(text).count(1) == 1
        assert ours.decode(ours.encode(text)).replace(" ", "") == text.replace(
            "\uff1c", "<"
        ).replace("\uff1e", ">")
    assert ours.pieces(ours.encode("<extra_id_7>", parse_special=True)) == ["<extra_id_7>", "</s>"]


def test_a_name_is_split_where_no_piece_spans():
    assert split_pattern("</s>", set()) == "<(?=/s>)"
    assert split_pattern("</s>", {"</", "/s"}) == "</s(?=>)"
    assert split_pattern("<s>", {"<s>", "s>", "<s"}) == "<(?=s>)"


def test_sentinels_stand_behind_the_vocabulary_in_reverse(tmp_path):
    size = len(pieces_of(spm_bytes("t5")))
    ours = load_tokenizer(t5(tmp_path))
    assert ours.pieces([size, size + 99]) == ["<extra_id_99>", "<extra_id_0>"]
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    fewer = load_tokenizer(write(tmp_path / "mt5", "mt5", config, spiece__model=spm_bytes("t5")))
    assert fewer.vocab_size == size


def test_ids_that_were_kept_free_get_the_names_of_the_config(tmp_path):
    data = spm_bytes("gemma")
    index = pieces_of(data).index("<mask>")
    config = {"added_tokens_decoder": {str(index): entry("<|im_start|>")}}
    ours = load_tokenizer(write(tmp_path, "gemma", config, tokenizer__model=data))
    assert ours.encode("<|im_start|>", add_special=False, parse_special=True) == [index]


def test_scores_decide_the_order_of_merges_even_where_the_ids_do_not(tmp_path):
    model = proto.ModelProto()
    model.ParseFromString(spm_bytes("llama"))
    for text, score in (("lazy", -0.5), ("zy", -0.25), ("la", -0.125)):
        if text not in {piece.piece for piece in model.pieces}:
            model.pieces.add(piece=text, score=score)
    data = model.SerializeToString()
    ours = load_tokenizer(write(tmp_path, "llama", None, tokenizer__model=data))
    texts = ["the lazy dog", "lazy", "crazy lalala"]
    assert ours.encode_batch(texts, add_special=False) == oracle(data).encode(texts)


def test_a_family_whose_ids_are_moved_in_another_way_is_refused(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(spm_bytes("unigram"))
    with pytest.raises(
        DataError, match="the files of a camembert tokenizer need a reader of their own"
    ):
        load_tokenizer(tmp_path, "camembert")
    with pytest.raises(DataError, match=r"only xlm-roberta's is known"):
        load_tokenizer(tmp_path, "llama")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(spm_bytes("t5"))
    with pytest.raises(DataError, match="the first three pieces are not <unk>, <s> and </s>"):
        load_tokenizer(tmp_path, "xlm-roberta")


def test_a_saved_sentencepiece_tokenizer_is_one_standard_file(tmp_path):
    for kind in SPM:
        data = spm_bytes(kind)
        ours = load_tokenizer(write(tmp_path / kind, "llama", None, tokenizer__model=data))
        saved = json.loads(ours.save(tmp_path / f"{kind}.json").read_text(encoding="utf-8"))
        assert saved["model"]["type"] == (
            "Unigram" if parse_model(data).algorithm == "unigram" else "BPE"
        )
