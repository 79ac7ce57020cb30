"""The .model file: read as protobuf reads it, and never further than its bytes."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import normalizers

from tests.text.hard_strings import hard_strings
from tests.text.hf.folders import SPM, spm_bytes
from weft.core.errors import DataError
from weft.text.hf.sentencepiece_model import (
    ProtobufError,
    check_charsmap,
    check_pieces,
    fields,
    parse_model,
    read_sentencepiece,
)


def changed(**settings: object) -> bytes:
    """A small model with other settings: trainer__x and normalizer__x."""
    model = proto.ModelProto()
    model.ParseFromString(spm_bytes("unigram"))
    for name, value in settings.items():
        spec, field = name.split("__")
        setattr(getattr(model, f"{spec}_spec"), field, value)
    return model.SerializeToString()


@pytest.mark.parametrize("kind", SPM)
def test_a_file_is_read_as_protobuf_reads_it(kind):
    theirs = proto.ModelProto()
    theirs.ParseFromString(spm_bytes(kind))
    ours = parse_model(spm_bytes(kind))
    assert [(p.text, p.score, p.type) for p in ours.pieces] == [
        (p.piece, p.score, p.type) for p in theirs.pieces
    ]
    trainer, normalizer = theirs.trainer_spec, theirs.normalizer_spec
    assert (ours.begin_id, ours.end_id) == (trainer.bos_id, trainer.eos_id)
    assert (ours.pad_id, ours.unknown_id) == (trainer.pad_id, trainer.unk_id)
    assert ours.byte_fallback == trainer.byte_fallback
    assert ours.charsmap == normalizer.precompiled_charsmap
    assert ours.add_dummy_prefix == normalizer.add_dummy_prefix
    assert ours.remove_extra_whitespaces == normalizer.remove_extra_whitespaces


@pytest.mark.parametrize("seed", range(30))
def test_pieces_in_every_form_are_read_as_protobuf_reads_them(seed):
    """Most are in the form that is read in bulk; some are long, or lack a field, or contain NUL."""
    rng, theirs = random.Random(seed), proto.ModelProto()
    for index in range(rng.randint(0, 60)):
        piece = theirs.pieces.add()
        if rng.random() < 0.95:
            length = rng.choice([0, 1, 5, 120, 121, 130]) if rng.random() < 0.3 else 3
            piece.piece = f"{index}" + "".join(
                rng.choices("ab\u4e2d\x00", [9, 9, 9, 0.1], k=length)
            )
        if rng.random() < 0.95:
            piece.score = rng.random()
        if rng.random() < 0.2:
            piece.type = rng.choice([1, 2, 3, 4, 5, 6])
    ours = parse_model(theirs.SerializeToString())
    assert list(ours.pieces) == [(p.piece, p.score, p.type) for p in theirs.pieces]
    data = theirs.SerializeToString()
    for length in range(0, len(data), 7):
        try:
            cut = parse_model(data[:length]).pieces
            assert cut == ours.pieces[: len(cut)]
        except ProtobufError:
            pass


def test_what_a_file_does_not_say_has_protobufs_default():
    theirs = proto.ModelProto()
    ours = parse_model(b"\x0a\x03\x0a\x01a")
    assert ours.add_dummy_prefix == theirs.normalizer_spec.add_dummy_prefix
    assert ours.remove_extra_whitespaces == theirs.normalizer_spec.remove_extra_whitespaces
    assert (ours.begin_id, ours.end_id) == (theirs.trainer_spec.bos_id, theirs.trainer_spec.eos_id)
    assert ours.pad_id == theirs.trainer_spec.pad_id
    assert ours.algorithm == "unigram"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x05ab", "field 1 at byte 0 is longer than its message"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "field 1 at byte 0 is longer than its message"),
        (b"\x08" + b"\x80" * 10, "a number at byte 1 has more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "a number at byte 1 has more than 64 bits"),
        (b"\x08\x80", "a number at byte 1 has no end"),
        (b"\x08", "a number at byte 1 has no end"),
        (b"\x0b", "wire type 3 at byte 0"),
        (b"\x00\x01", "field 0 at byte 0"),
        (b"\x0d\x01\x02", "field 1 at byte 0 is longer"),
        (b"\x08\x01", "a number where bytes are expected"),
        (b"\x0a\x03\x0a\x01\xff", "text that is not UTF-8"),
        (b"\x0a\x02\x10\x01", "a number where bytes are expected"),
        (b"\x0a\x04\x12\x02ab", "a float that has not four bytes"),
        (b"\x0a\x02\x18\x63", "piece '' is of type 99"),
    ],
)
def test_wrong_bytes_are_named(data, reason):
    with pytest.raises(ProtobufError, match=reason):
        parse_model(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_a_protobuf_error(data):
    try:
        list(fields(data))
        parse_model(data)
    except ProtobufError:
        pass


def test_a_file_with_flipped_bytes_is_read_or_refused():
    """And what is read can be used to normalize: the library never leaves the charsmap."""
    whole, rng, texts = spm_bytes("unigram"), random.Random(0), hard_strings(60, seed=4)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            file = parse_model(bytes(data))
            check_pieces(file)
            check_charsmap(file.charsmap)
        except ProtobufError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        if file.charsmap:
            normalizer = normalizers.Precompiled(file.charsmap)
            for text in texts:
                normalizer.normalize_str(text)
    assert min(outcomes.values()) > 0


@pytest.mark.parametrize(
    ("charsmap", "reason"),
    [
        (b"\x01", "of 1 bytes has a trie of 1"),
        (struct.pack("<I", 4096) + b"\0" * 8, "of 12 bytes has a trie of 4096"),
        (struct.pack("<I", 0), "has a trie of 0"),
        (struct.pack("<II", 4, 0) + b"\xff", "are not UTF-8"),
        (struct.pack("<II", 4, 5 << 10) + b"ab\0", "points outside of itself"),
        (struct.pack("<I", 1024) + struct.pack("<256I", 1 << 8, *[9] * 255), "points outside"),
    ],
)
def test_a_charsmap_that_leads_outside_is_refused(charsmap, reason):
    with pytest.raises(ProtobufError, match=reason):
        check_charsmap(charsmap)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_the_charsmaps_of_sentencepiece_are_whole(rule):
    check_charsmap(parse_model(spm_bytes("unigram", normalization_rule_name=rule)).charsmap)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"trainer__model_type": 4}, "its algorithm is 'char'"),
        ({"trainer__treat_whitespace_as_suffix": True}, "writes spaces after words"),
        ({"normalizer__escape_whitespaces": False}, "keeps spaces as they are"),
        ({"trainer__byte_fallback": True}, "not all bytes are pieces"),
    ],
)
def test_what_the_library_cannot_do_is_refused(settings, reason, tmp_path):
    (tmp_path / "x.model").write_bytes(changed(**settings))
    with pytest.raises(DataError, match=rf"x\.model: is not a SentencePiece model .*{reason}"):
        read_sentencepiece(tmp_path / "x.model")


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        ({"piece": "the", "type": 5}, "piece 'the' is marked as unused"),
        ({"piece": "<unk>"}, "piece '<unk>' is empty or a duplicate"),
        ({"piece": ""}, "piece '' is empty or a duplicate"),
        ({"piece": "new", "score": float("nan")}, "the score of piece 'new' is nan"),
        ({"piece": "new", "type": 2}, "unknown one, or several"),
    ],
)
def test_pieces_that_no_encoder_can_use_are_refused(piece, reason):
    model = proto.ModelProto()
    model.ParseFromString(spm_bytes("unigram", vocab_size=300))
    kept = [old for old in model.pieces if old.piece != "the"]
    del model.pieces[:]
    model.pieces.extend([*kept, proto.ModelProto.SentencePiece(**piece)])
    with pytest.raises(ProtobufError, match=reason):
        check_pieces(parse_model(model.SerializeToString()))


def test_a_tiktoken_file_under_the_same_name_is_named(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(DataError, match=r"tokenizer\.model: is a tiktoken file"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_a_file_that_is_far_too_large_is_not_read(tmp_path):
    with (tmp_path / "tokenizer.model").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DataError, match="is larger than 128 MiB"):
        read_sentencepiece(tmp_path / "tokenizer.model")
