"""Tokenizer folders as the real repositories have them, with small vocabularies trained here."""

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from tests.text.hard_strings import CODE, CONTRACTIONS, NUMBERS, SCRIPTS

LINES = (
    [text for text in (*SCRIPTS, *CODE, *CONTRACTIONS, *NUMBERS) for _ in range(5)]
    + ["the quick brown fox jumps over the lazy dog"] * 20
    + ["    indented code    x = 1"] * 10
)
END = "<|endoftext|>"
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

COMMON = {"hard_vocab_limit": False, "minloglevel": 2}
PLAIN_BPE = {
    "model_type": "bpe",
    "vocab_size": 900,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}
GEMMA_IDS = {
    "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>", "eos_piece": "<eos>",
    "bos_piece": "<bos>", "add_dummy_prefix": False,
}  # fmt: skip
SPM: dict[str, dict[str, Any]] = {
    "llama": PLAIN_BPE,
    "gemma": PLAIN_BPE
    | GEMMA_IDS
    | {"user_defined_symbols": ["<mask>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n"]},
    "spaces": PLAIN_BPE
    | GEMMA_IDS
    | {"user_defined_symbols": ["<2mass>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "\n\n"]},
    "bpe": {"model_type": "bpe", "vocab_size": 700},
    "t5": {"vocab_size": 500, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "unigram": {"vocab_size": 400},
    "unigram-bytes": {"vocab_size": 700, "byte_fallback": True},
    "unigram-plain": {
        "vocab_size": 400,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
}


@cache
def spm_bytes(kind: str, start: int = 0, stop: int | None = None, **more: Any) -> bytes:
    """A .model file, trained on some of the lines."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES[start:stop]), model_writer=out, **COMMON | SPM[kind] | more
    )
    return out.getvalue()


@cache
def oracle(data: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=data)


def pieces_of(data: bytes) -> list[str]:
    model = proto.ModelProto()
    model.ParseFromString(data)
    return [piece.piece for piece in model.pieces]


@cache
def byte_level(specials: tuple[str, ...] = (END,), pattern: str | None = None) -> Backend:
    """Trained merges over bytes; words are cut by GPT-2's pattern or by another one."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        backend.pre_tokenizer = split(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@cache
def wordpiece(lower: bool) -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=list(BERT), show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def template(backend: Backend, begin: str) -> processors.PostProcessor:
    ids = [(begin, backend.token_to_id(begin))]
    return processors.TemplateProcessing(single=[begin, "$A"], special_tokens=ids)


def write(folder: Path, model_type: str, config: dict[str, Any] | None, **files: Any) -> Path:
    """Write config.json, tokenizer_config.json and the given files; "__" in a name is its dot."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {name.replace("__", "."): content for name, content in files.items()}
    named["config.json"] = {"model_type": model_type}
    if config is not None:
        named["tokenizer_config.json"] = config
    for name, content in named.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def entry(content: str, **flags: bool) -> dict[str, Any]:
    """A token as configs list it."""
    usual = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {"content": content, **usual, "special": True, **flags}
