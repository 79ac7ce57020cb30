"""The contract of every kind of tokenizer in the table."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.text.material import CORPUS, HARD, trained
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_kinds import KINDS
from weft.text.tokenizer_training import TokenizerConfig

EXACT = [name for name in KINDS if name != "word"]
SCRIPTS = st.text(
    st.one_of(st.sampled_from("ab 我吃了<>0x\u0301\u200d\x00\u2581"), st.characters(codec="utf-8"))
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_keeps_its_size_and_begins_with_the_special_tokens(kind):
    tokenizer = trained(kind)
    assert tokenizer.vocab_size <= 420
    assert tokenizer.pieces(range(5)) == ["<pad>", "<begin>", "<end>", "<unknown>", "<mask>"]
    roles = (tokenizer.pad_id, tokenizer.begin_id, tokenizer.end_id)
    assert (*roles, tokenizer.unknown_id, tokenizer.mask_id) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_was_trained_on_comes_back(kind):
    tokenizer = trained(kind)
    assert tokenizer.decode_batch(tokenizer.encode_batch(CORPUS)) == CORPUS


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
@pytest.mark.parametrize("kind", EXACT)
def test_hard_strings_come_back_exactly(kind, text):
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tokenizer.begin_id
    assert ids[-1] == tokenizer.end_id
    assert all(index > 4 for index in ids[1:-1]), "text never becomes a special token"


@pytest.mark.parametrize("kind", [*EXACT, "word spelled in bytes"])
def test_any_text_comes_back_exactly(kind):
    is_word = kind.startswith("word")
    tokenizer = trained("word", byte_fallback=True) if is_word else trained(kind)

    @given(SCRIPTS)
    @example("<0x41>" * 3)
    def check_pieces(text):
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(ids)) == text.encode()

    check_pieces()


@pytest.mark.parametrize("letter", ["x", "我", " "])
@pytest.mark.parametrize("kind", KINDS)
def test_a_megabyte_in_one_line_takes_seconds(kind, letter):
    text = letter * (1_000_000 // len(letter.encode()))
    started = time.perf_counter()
    ids = trained(kind).encode(text)
    assert kind == "word" or trained(kind).decode(ids) == text
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_file(kind):
    config = TokenizerConfig(kind=kind, vocab_size=420)
    again = Tokenizer.train(iter(CORPUS), config)
    assert again.backend.to_str() == trained(kind).backend.to_str()


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_of_one_character_is_enough(kind):
    tokenizer = Tokenizer.train(["我"], TokenizerConfig(kind=kind, min_frequency=1))
    assert tokenizer.decode(tokenizer.encode("我")) == "我"


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "byte"])
def test_without_bytes_what_is_not_known_becomes_unknown(kind):
    tokenizer = trained(kind, vocab_size=160, byte_fallback=False)
    assert tokenizer.vocab_size <= 160
    assert tokenizer.unknown_id in tokenizer.encode("龘")
    assert "<0x41>" not in tokenizer.backend.get_vocab()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_learnt_tokens_are_shorter_than_characters(kind):
    lines = CORPUS[2:4]
    longer = sum(map(len, trained("character").encode_batch(lines)))
    assert sum(map(len, trained(kind).encode_batch(lines))) < longer


def test_rare_characters_leave_room_for_longer_pieces():
    """600 different characters, room for 139: at least a quarter is left for joined pieces."""
    lines = ["the cat sat on the mat " * 3, "".join(chr(0x4E00 + i) for i in range(600)) * 2]
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=400))
    assert tokenizer.decode(tokenizer.encode(lines[1])) == lines[1]
    assert " the" in tokenizer.pieces(tokenizer.encode(lines[0]))


def test_words_are_kept_with_their_spaces_and_others_are_unknown():
    tokenizer = trained("word")
    ids = tokenizer.encode("the cat saw the apples，苹果", add_special=False)
    assert tokenizer.pieces(ids) == [
        "the", " cat", "<unknown>", " the", " apples", "，", "苹", "果",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_dates_in_all_languages_come_back_exactly(kind):
    from weft.demo.dates import DateTask

    dates = [pair.written for pair in DateTask().pairs("train", 20_000, seed=1)]
    tokenizer = Tokenizer.train(dates, TokenizerConfig(kind=kind))
    assert tokenizer.decode_batch(tokenizer.encode_batch(dates)) == dates
