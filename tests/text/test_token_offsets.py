"""Each token knows the characters it covers and the bytes it stands for."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.text.material import CORPUS, HARD, trained
from weft.text.tokenizer import GPT2_BYTES, Tokenizer, byte_offsets
from weft.text.tokenizer_kinds import KINDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "word"])
def test_offsets_cover_the_text_in_order_and_match_the_pieces(kind):
    @given(st.one_of(st.text(), st.sampled_from([*CORPUS, *HARD.values()])))
    def check_pieces(text):
        tokens = trained(kind).tokens(text, add_special=False)
        assert tokens.ids == trained(kind).encode(text, add_special=False)
        assert sorted({i for offset in tokens.offsets for i in range(*offset)}) == [
            *range(len(text))
        ]
        assert tokens.offsets == sorted(tokens.offsets)
        for piece, (start, stop) in zip(tokens.pieces, tokens.offsets, strict=True):
            assert piece == text[start:stop] or (piece.startswith("<0x") and stop - start == 1)

    check_pieces()


def test_begin_and_end_cover_nothing():
    tokens = trained().tokens("我吃")
    assert (tokens.pieces[0], tokens.offsets[0]) == ("<begin>", (0, 0))
    assert (tokens.pieces[-1], tokens.offsets[-1]) == ("<end>", (0, 0))


def test_where_normalization_changed_the_bytes_all_keep_the_whole_range():
    assert byte_offsets("ab", (0, 2), 2) == [(0, 1), (1, 2)]
    assert byte_offsets("e\u0301", (0, 2), 2) == [(0, 2), (0, 2)]


def test_the_bytes_of_a_token_that_is_cut_inside_a_character():
    tokenizer = trained("byte")
    ids = tokenizer.encode("我", add_special=False)
    assert tokenizer.pieces(ids) == ["<0xE6>", "<0x88>", "<0x91>"]
    assert tokenizer.token_bytes(ids) == [b"\xe6", b"\x88", b"\x91"]
    assert tokenizer.token_bytes([2]) == [b"<end>"]


def test_the_byte_alphabet_of_gpt2_is_the_one_of_the_library():
    assert set(GPT2_BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    tokenizer = Tokenizer(backend)
    for text in HARD.values():
        assert b"".join(tokenizer.token_bytes(tokenizer.encode(text))) == text.encode()
    backend.add_special_tokens(["<|我|>"])
    assert Tokenizer(backend).token_bytes([backend.token_to_id("<|我|>")]) == ["<|我|>".encode()]


def test_the_space_marker_of_others_is_a_space():
    backend = tokenizers.Tokenizer(models.WordLevel({"\u2581the": 0, "<0x0A>": 1}, unk_token="x"))
    backend.decoder = decoders.Metaspace()
    assert Tokenizer(backend).token_bytes([0, 1]) == [b" the", b"\n"]


def test_a_mark_behind_the_end_of_a_word_is_a_space():
    backend = tokenizers.Tokenizer(
        models.BPE({"no": 0, "va</w>": 1, "<x>": 2}, [], end_of_word_suffix="</w>")
    )
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    assert Tokenizer(backend).token_bytes([0, 1, 2]) == [b"no", b"va ", b"<x>"]
    assert Tokenizer(backend).decode([0, 1, 0, 1]) == "nova nova"
