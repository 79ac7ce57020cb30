"""Which files make a tokenizer, what the files beside it say, and clear errors."""

import json

import pytest
from transformers import AutoTokenizer

from tests.text.hard_strings import hard_strings
from tests.text.hf.families import (
    bart,
    bert_cased,
    bert_uncased,
    gpt2,
    llama,
    llama3_json,
    qwen2,
    smollm_json,
)
from tests.text.hf.folders import END, byte_level, entry, spm_bytes, write
from tests.text.material import trained
from weft.core.errors import DataError
from weft.text.hf import FORMATS, load_tokenizer
from weft.text.hf.tokenizer_config import family_name

TEXTS = hard_strings(200, seed=8)


def test_a_folder_without_a_tokenizer_names_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match="has no tokenizer. Looked for tokenizer.json") as error:
        load_tokenizer(tmp_path)
    for kind in FORMATS.values():
        for name in kind.files:
            assert name in str(error.value)


def test_a_tokenizer_json_goes_before_all_other_files(tmp_path):
    folder = gpt2(tmp_path)
    trained().save(folder)
    assert load_tokenizer(folder).special_tokens.begin == "<begin>"
    assert load_tokenizer(folder).config == trained().config


def test_vocab_txt_and_the_tokenizer_json_of_the_same_model_agree(tmp_path):
    for write_folder in (bert_cased, bert_uncased):
        folder = write_folder(tmp_path / write_folder.__name__)
        ours = load_tokenizer(folder)
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "json")
        (tmp_path / "json" / "vocab.txt").unlink(missing_ok=True)
        other = load_tokenizer(tmp_path / "json")
        assert other.encode_batch(TEXTS) == ours.encode_batch(TEXTS)
        assert (other.special_tokens, other.frame) == (ours.special_tokens, ours.frame)


@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False},
        None,
    ],
)
def test_berts_settings_change_how_text_is_cleaned(config, tmp_path):
    folder = bert_cased(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    write(folder, "bert", config)
    theirs = AutoTokenizer.from_pretrained(folder)(list(TEXTS))["input_ids"]
    assert load_tokenizer(folder).encode_batch(TEXTS) == theirs


def test_a_vocabulary_may_have_odd_line_ends(tmp_path):
    lines = "[UNK]\r\n[CLS]\r\n[SEP]\r\n\u2028\r\na\r\n"
    ours = load_tokenizer(write(tmp_path, "bert", None, vocab__txt=lines))
    assert ours.encode("a b") == [1, 4, 0, 2]


@pytest.mark.parametrize(
    ("config", "frame"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([0], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([0], [0])),
    ],
)
def test_the_config_decides_whether_a_text_gets_begin_and_end(config, frame, tmp_path):
    folder = write(gpt2(tmp_path), "gpt2", {"tokenizer_class": "GPT2Tokenizer", **config})
    ours = load_tokenizer(folder)
    assert ours.frame == frame
    assert ours.encode("the") == AutoTokenizer.from_pretrained(folder)("the")["input_ids"]


def test_a_role_that_the_vocabulary_lacks_becomes_a_new_token(tmp_path):
    folder = write(gpt2(tmp_path), "gpt2", {"pad_token": "[PAD]", "mask_token": "[MASK]"})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    size = byte_level().get_vocab_size()
    assert (ours.pad_id, ours.mask_id) == (theirs.pad_token_id, theirs.mask_token_id)
    assert ours.pad_id == size


def test_a_role_that_the_config_denies_is_none_but_for_padding(tmp_path):
    ours = load_tokenizer(qwen2(tmp_path))
    assert (ours.special_tokens.begin, ours.special_tokens.unknown) == (None, None)
    denied = {"bos_token": None, "eos_token": None, "pad_token": None}
    ours = load_tokenizer(write(llama3_json(tmp_path / "b"), "llama", denied))
    assert (ours.begin_id, ours.end_id) == (None, None)
    ours = load_tokenizer(write(smollm_json(tmp_path / "c"), "llama", denied))
    assert ours.pad_id == 0


def test_tokens_of_the_older_file_are_added_with_their_ids(tmp_path):
    size = byte_level().get_vocab_size()
    added = {"<tool>": size + 1, "<ent>": size}
    config = {"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ["<ent>"]}
    folder = write(gpt2(tmp_path), "gpt2", config, added_tokens__json=added)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "a <ent> b <tool>c"
    ids = ours.encode(text, parse_special=True)
    assert ids == theirs(text)["input_ids"]
    assert {size, size + 1} <= set(ids)
    assert size not in ours.encode(text)
    assert size + 1 in ours.encode(text)


def test_a_mask_takes_the_space_before_it_where_the_files_say_so(tmp_path):
    ours = load_tokenizer(bart(tmp_path))
    ids = ours.encode("the <mask> cat", parse_special=True)
    assert ours.pieces(ids) == ["<s>", "the", "<mask>", *ours.pieces(ids)[3:]]


def test_an_id_that_does_not_come_out_is_refused(tmp_path):
    config = {"added_tokens_decoder": {"5000": entry("<x>")}}
    with pytest.raises(DataError, match=r"added token '<x>' has id 5000, but .* gives it 795"):
        load_tokenizer(write(gpt2(tmp_path), "gpt2", config))


def test_a_tokenizer_json_gets_the_tokens_that_were_added_later(tmp_path):
    folder = smollm_json(tmp_path)
    size = load_tokenizer(folder).vocab_size
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        "0": entry(END),
        str(size): entry("<think>", special=False),
        "77": entry("<|im_end|>"),
    }
    ours = load_tokenizer(write(folder, "llama", config))
    assert size in ours.encode("a<think>b")
    assert ours.end_id == 2


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"bos_token": 7}, "7 is not a special token"),
        ({"bos_token": {"lstrip": True}}, "is not a special token"),
        ({"additional_special_tokens": [["x"]]}, r"\['x'\] is not a special token"),
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder is not a table"),
        ({"added_tokens_decoder": {"x": entry("a")}}, "'x' is not the id of an added token"),
        ({"added_tokens_decoder": {"-1": entry("a")}}, "'-1' is not the id"),
        ({"added_tokens_decoder": {"1": 5}}, "5 is not a special token"),
        ({"add_prefix_space": "yes"}, "add_prefix_space is 'yes': it must be true or false"),
    ],
)
def test_settings_that_make_no_sense_are_named_with_their_file(config, reason, tmp_path):
    with pytest.raises(DataError, match=rf"tokenizer_config\.json: .*{reason}"):
        load_tokenizer(write(gpt2(tmp_path), "gpt2", config))


def test_an_odd_number_of_sentinels_is_refused(tmp_path):
    config = {"extra_ids": -3}
    with pytest.raises(DataError, match="extra_ids is -3"):
        load_tokenizer(write(tmp_path, "t5", config, spiece__model=spm_bytes("t5")))


@pytest.mark.parametrize(
    ("merges", "line", "reason"),
    [("#version: 0.2\na b\nc\n", 3, "'c' is not a pair"), ("a b c\n", 1, "'a b c' is not a pair"),
     ("#version: 0.2\n\u0120 zzz\n", 2, "zzz' is not a pair")],
)  # fmt: skip
def test_a_merge_that_is_none_is_named_with_its_line(merges, line, reason, tmp_path):
    vocabulary = {name: index for index, name in enumerate(["a", "b", "ab", "c", "\u0120"])}
    folder = write(tmp_path, "gpt2", None, vocab__json=vocabulary, merges__txt=merges)
    with pytest.raises(DataError, match=rf"merges\.txt, line {line}: .*{reason}"):
        load_tokenizer(folder)


def test_a_vocabulary_without_bytes_is_not_taken_for_one(tmp_path):
    files = {"vocab__json": {"a</w>": 0}, "merges__txt": "#version: 0.2\n"}
    with pytest.raises(DataError, match="so this is not byte-level BPE"):
        load_tokenizer(write(tmp_path, "new", None, **files))
    with pytest.raises(DataError, match="the files of a clip tokenizer need a reader of their own"):
        load_tokenizer(write(tmp_path, "clip", None, **files))


def test_what_berts_files_may_not_ask_for_is_refused(tmp_path):
    with pytest.raises(DataError, match="word_tokenizer_type is 'mecab': only 'basic'"):
        load_tokenizer(write(bert_cased(tmp_path), "bert", {"word_tokenizer_type": "mecab"}))
    with pytest.raises(DataError, match=r"vocab\.txt: has no line '\[UNK\]'"):
        load_tokenizer(write(tmp_path / "x", "bert", None, vocab__txt="a\nb\n"))


@pytest.mark.parametrize(
    ("tokenizer_class", "model_type", "name"),
    [
        ("LlamaTokenizerFast", "mistral", "llama"),
        ("XLMRobertaTokenizer", None, "xlmroberta"),
        ("PreTrainedTokenizerFast", "xlm-roberta", "xlmroberta"),
        ("TokenizersBackend", "gpt_neo", "gptneo"),
        (None, None, None),
        (["x"], "bert", "bert"),
    ],
)
def test_the_family_is_the_class_that_the_config_names_else_the_models_type(
    tokenizer_class, model_type, name
):
    assert family_name({"tokenizer_class": tokenizer_class}, model_type) == name


def test_a_family_that_nobody_names_is_the_usual_one_of_the_files(tmp_path):
    folder = llama(tmp_path)
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    ours = load_tokenizer(folder)
    assert (ours.frame, ours.special_tokens.end) == (([1], []), "</s>")
