"""Text to ids and back: begin and end, counted truncation, special tokens that stay out of text."""

import logging
import pickle
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.material import CORPUS, HARD, trained
from weft.core.errors import DataError, UsageError
from weft.text.encoding import TextReport
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

TEXT = "the cat sat on the mat"


def test_one_text_and_a_batch_agree():
    tokenizer = trained()
    assert tokenizer.encode_batch(CORPUS) == [tokenizer.encode(text) for text in CORPUS]


def test_begin_and_end_frame_the_text_only_if_wanted():
    tokenizer = trained()
    bare = tokenizer.encode(TEXT, add_special=False)
    assert tokenizer.encode(TEXT) == [1, *bare, 2]
    assert tokenizer.decode([1, *bare, 2], skip_special=False) == f"<begin>{TEXT}<end>"


@pytest.mark.parametrize(("begin", "end", "frame"), [(True, False, ([1], [])),
                                                     (False, True, ([], [2])),
                                                     (False, False, ([], []))])  # fmt: skip
def test_settings_can_leave_begin_or_end_out(begin, end, frame):
    assert trained(add_begin=begin, add_end=end).frame == frame


def test_truncation_keeps_begin_and_end_and_is_counted_and_logged_once(caplog):
    tokenizer, report = trained("character"), TextReport()
    with caplog.at_level(logging.WARNING):
        rows = tokenizer.encode_batch([TEXT, "the", ""], max_len=7, report=report)
        tokenizer.encode(TEXT, max_len=7, report=report)
    assert rows[0] == [1, *tokenizer.encode(TEXT, add_special=False)[:5], 2]
    assert (report.lines, report.empty, report.cut_lines, report.cut_tokens) == (4, 1, 2, 34)
    assert report.summary() == "4 lines, 21 tokens; 2 cut at 7 tokens (34 tokens lost); 1 empty."
    assert len(caplog.records) == 1


def test_a_tokenizer_with_a_limit_truncates_by_default_and_counts_itself():
    tokenizer = Tokenizer.train(CORPUS, TokenizerConfig(kind="byte", max_len=6))
    assert len(tokenizer.encode(TEXT)) == 6
    assert len(tokenizer.encode(TEXT, max_len=9)) == 9
    assert tokenizer.report.cut_lines == 2


@given(st.text(), st.integers(3, 20))
def test_a_truncated_text_is_the_beginning_of_the_whole(text, max_len):
    tokenizer, report = trained(), TextReport()
    whole, cut = tokenizer.encode(text), tokenizer.encode(text, max_len=max_len, report=report)
    assert cut == (whole if len(whole) <= max_len else [*whole[: max_len - 1], 2])
    assert report.tokens + report.cut_tokens == len(whole)


def test_a_limit_that_leaves_nothing_of_the_text_is_refused():
    with pytest.raises(
        UsageError, match=r"max_len is 2 but begin and end alone take 2.*at least 3"
    ):
        trained().encode(TEXT, max_len=2)


def test_unknown_tokens_are_counted():
    report = TextReport()
    trained("word").encode("the zebra and the gnu", report=report)
    assert report.unknown == 2


def test_special_tokens_are_read_out_of_text_only_if_wanted():
    tokenizer = trained()
    assert tokenizer.encode("<end>", add_special=False) != [2]
    assert tokenizer.encode("a<end>", add_special=False, parse_special=True)[-1] == 2
    assert tokenizer.encode("<end>", add_special=False) != [2]


def test_extra_special_tokens_have_ids_and_are_left_out_of_decoded_text():
    tokenizer = trained(extra_special=("<de>",))
    assert tokenizer.pieces([5]) == ["<de>"]
    ids = tokenizer.encode("<de>Apfel", parse_special=True)
    assert ids[1] == 5
    assert tokenizer.decode(ids) == "Apfel"


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_normalized_text_comes_back_in_its_form(form, text):
    tokenizer = trained(normalise=form)
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize(form.upper(), text)


def test_lower_case_is_learnt_and_encoded():
    tokenizer = trained(lowercase=True)
    assert tokenizer.encode("THE CAT") == tokenizer.encode("the cat")
    assert not any(piece == "T" for piece in tokenizer.backend.get_vocab())


@pytest.mark.parametrize("wrong", [-1, 420, 10**6])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    last = trained().vocab_size - 1
    with pytest.raises(UsageError, match=rf"id {wrong} is not in the vocabulary: .* 0 to {last}"):
        trained().decode([5, wrong])


def test_ids_may_be_numbers_of_numpy():
    tokenizer = trained()
    assert tokenizer.decode(np.asarray(tokenizer.encode(TEXT))) == TEXT


def test_what_is_not_text_is_refused():
    with pytest.raises(UsageError, match=r"character 2 of the text is '\\ud800'"):
        trained().encode("a\ud800")
    with pytest.raises(UsageError, match="text is bytes"):
        trained().encode(b"a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="texts is one str"):
        trained().encode_batch("abc")


def test_a_role_that_is_missing_is_none_or_refused():
    tokenizer = Tokenizer(trained().parsing_backend, special_tokens=None)
    assert tokenizer.id_of("mask") == 4
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    bare = Tokenizer(Backend(models.BPE({"a": 0}, [])))
    assert bare.mask_id is None
    with pytest.raises(UsageError, match="this tokenizer has no mask token"):
        bare.id_of("mask")


def test_a_copy_for_another_process_is_the_same_tokenizer():
    tokenizer = trained(max_len=9)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("<end> the cat") == tokenizer.encode("<end> the cat")
    assert (copy.special_tokens, copy.config, copy.max_len) == (
        tokenizer.special_tokens,
        tokenizer.config,
        9,
    )
    assert copy.report is not tokenizer.report


def test_a_corpus_of_empty_lines_is_refused():
    with pytest.raises(DataError, match="the 2 lines to train a tokenizer on are all empty"):
        Tokenizer.train(["", ""])


def test_files_are_trained_on_as_lines_are(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS), encoding="utf-8")
    config = TokenizerConfig(vocab_size=420)
    assert Tokenizer.train_files([path], config).backend.to_str() == trained().backend.to_str()


def test_a_tokenizer_reads_only_a_part_of_a_large_corpus_and_says_so(caplog):
    lines = [f"{i:07d} and the cat sat on the mat" for i in range(60_000)]
    with caplog.at_level(logging.WARNING):
        Tokenizer.train(lines, TokenizerConfig(vocab_size=300, sample_bytes=1 << 20))
    message = caplog.records[0].getMessage()
    assert message.startswith("tokenizer saw ")
    assert "of 60000 lines" in message
