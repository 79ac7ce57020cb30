"""fairseq folders -> a Checkpoint with one tokenizer per language. Read only.

    checkpoint_best.pt         weights and the training's settings (pickle_files.py)
    dict.SRC.txt dict.TGT.txt  "ab@@ 17" per line: a piece (here one that does not end its word) and
                               a count; ids follow those of <s> <pad> </s> <unk>
    bpe.code                   "a b</w>" per line, best merge first, for both languages (subword-nmt
                               0.2, or fastBPE with a count at the end)
    weft.json                  optional: what only the code around the model defines

The source dictionary is identified by the sizes of the embeddings, otherwise by the language names
in the settings. In the tokenizers, pieces have the names that the `tokenizers` library gives them:
"ab" inside a word, "ab</w>" at its end. Some merges go through a pair that never occurs by itself
and therefore is not in the dictionary; the source tokenizer gives it an id after the dictionary's,
for which the embedding repeats the row of <unk>. Ids equal fairseq's wherever all pieces are known;
an unknown word may become more <unk> than in fairseq.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from weft.checkpoint.families.fairseq import UNK
from weft.checkpoint.huggingface import TASKS, HFCheckpoint, build_hf, open_hf
from weft.checkpoint.model_catalog import METADATA_FILE
from weft.checkpoint.pickle_files import FAIRSEQ_PACKAGES, is_plain_tensor, read_pickle
from weft.checkpoint.tensor_source import InMemorySource
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.config import Config, read_settings
from weft.core.errors import DataError
from weft.models.config import ModelConfig
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer

WEIGHTS_FILES = ("checkpoint_best.pt", "checkpoint_last.pt", "model.pt")
BPE_FILES = ("bpe.code", "bpe.codes", "bpecodes", "codes")
SOURCE_EMBEDDING, TARGET_EMBEDDING = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
CONTINUES, WORD_END = "@@", "</w>"

Merge = tuple[str, str]


class FairseqOptions(Config):
    """weft.json: what neither the checkpoint nor the dictionaries define."""

    lowercase: bool | None = None
    """Whether sources are lowercased; None: if their dictionary has no capital letter."""


@dataclass(frozen=True)
class FairseqFolder:
    """The contents of a folder."""

    values: dict[str, Any]
    """Settings for the fairseq family, with model_type and the sizes of both vocabularies."""
    source: InMemorySource
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    folder = open_fairseq(path)
    opened = open_model(folder, path)
    return Checkpoint(
        model=build_hf(opened, device, dtype),
        tokenizer=combined_tokenizer(folder),
        task=TASKS[opened.config.kind],
        generation_config=opened.generation_config,
        family=opened.family.name,
    )


def open_model(folder: FairseqFolder, path: Path) -> HFCheckpoint:
    return open_hf(folder.values, folder.values, path, folder.source)


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    opened = open_model(open_fairseq(path), path)
    return opened.family.name, opened.config


def load_tokenizer(path: Path) -> Tokenizer:
    return combined_tokenizer(open_fairseq(path))


def combined_tokenizer(folder: FairseqFolder) -> Tokenizer:
    """The source tokenizer, with the target tokenizer for decoding."""
    source = folder.source_tokenizer
    return Tokenizer(source.backend, source.special_tokens, target=folder.target_tokenizer)


def open_fairseq(path: Path) -> FairseqFolder:
    """Open a folder; weights stay in the file until a model is built."""
    file, options = first_existing(path, WEIGHTS_FILES), read_options(path)
    settings, tensors = read_checkpoint(file)
    dictionaries = {
        dictionary.name.split(".")[1]: read_dictionary(dictionary)
        for dictionary in sorted(path.glob("dict.*.txt"))
    }
    source, target = choose_dictionaries(dictionaries, settings, tensors, path)
    merges = read_merges(first_existing(path, BPE_FILES))
    reader = source_tokenizer(source, merges, options.lowercase)
    writer = target_tokenizer(target, merges)
    if reader.vocab_size > len(source):
        settings, tensors = extend_source_embedding(settings, tensors, reader.vocab_size)
    values = {
        **settings,
        "model_type": "fairseq",
        "source_vocab_size": reader.vocab_size,
        "target_vocab_size": len(target),
    }
    return FairseqFolder(values, InMemorySource(tensors, file), reader, writer)


def read_options(path: Path) -> FairseqOptions:
    file = path / METADATA_FILE
    if not file.is_file():
        return FairseqOptions()
    return FairseqOptions.from_dict(read_settings(file), str(file))


def first_existing(path: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (path / name).is_file():
            return path / name
    raise DataError(f"has none of {', '.join(names)}. Copy the whole model folder.", path)


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings of model and task in one dictionary, and the weights."""
    values = as_dict(read_pickle(file, FAIRSEQ_PACKAGES))
    state = values.get("model")
    if not isinstance(state, dict) or not all(is_plain_tensor(t) for t in state.values()):
        raise DataError(
            "has no weights under 'model': it is not a fairseq checkpoint. Use a checkpoint that "
            "fairseq-train wrote.",
            file,
        )
    if SOURCE_EMBEDDING not in state or TARGET_EMBEDDING not in state:
        raise DataError(
            "has no encoder and decoder: Weft reads fairseq's transformer. Use such a model.", file
        )
    cfg = as_dict(values.get("cfg"))
    parts = [cfg.get("task"), cfg.get("model")] if cfg else [values.get("args")]
    settings = {key: value for part in parts for key, value in as_dict(part).items()}
    if "encoder_layers" not in settings:
        raise DataError(
            "has no model settings, neither under 'args' nor under 'cfg'. Use a checkpoint with "
            "them.",
            file,
        )
    return settings, state


def as_dict(value: object) -> dict[str, Any]:
    """A dictionary or the attributes of a Namespace; empty for anything else."""
    if isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, dict) else {}


def choose_dictionaries(
    dictionaries: Mapping[str, list[str]],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> tuple[list[str], list[str]]:
    """The dictionaries of source and target."""
    sizes = tensors[SOURCE_EMBEDDING].shape[0], tensors[TARGET_EMBEDDING].shape[0]
    candidates = [
        (source, target)
        for source in dictionaries
        for target in dictionaries
        if (len(dictionaries[source]), len(dictionaries[target])) == sizes and source != target
    ]
    languages = (settings.get("source_lang"), settings.get("target_lang"))
    if languages in candidates:
        candidates = [(str(languages[0]), str(languages[1]))]
    if len(candidates) != 1:
        counts = ", ".join(f"{name} {len(pieces)}" for name, pieces in dictionaries.items())
        raise DataError(
            f"has dictionaries of {counts} pieces and embeddings of {sizes[0]} and {sizes[1]}: "
            "exactly one pair must match, or the checkpoint must name its languages.",
            path,
        )
    source, target = candidates[0]
    return dictionaries[source], dictionaries[target]


def extend_source_embedding(
    settings: dict[str, Any], tensors: dict[str, Tensor], size: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Repeat the row of <unk> for ids after the source dictionary. An embedding shared with the
    target is separated from it, because the output has no such ids."""
    words_VD = tensors[SOURCE_EMBEDDING]
    more_VD = words_VD[UNK].expand(size - len(words_VD), -1)
    if settings.get("share_all_embeddings"):
        separate = {"share_all_embeddings": False, "share_decoder_input_output_embed": True}
        settings = {**settings, **separate}
    return settings, {**tensors, SOURCE_EMBEDDING: torch.cat((words_VD, more_VD))}


def read_dictionary(path: Path) -> list[str]:
    """Pieces in the order of their ids, SPECIAL_TOKENS first."""
    pieces = list(SPECIAL_TOKENS)
    for number, line in enumerate(read_lines(path), 1):
        piece, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not piece or not count.isdecimal():
            raise DataError(f"is {line[:80]!r}: it must be a piece and a count.", path, number)
        pieces.append(piece)
    if len(set(pieces)) != len(pieces):
        raise DataError("has a piece twice: ids would not be those of its model.", path)
    return pieces


def read_merges(path: Path) -> list[Merge]:
    """BPE merges, best first; repeated ones count once."""
    lines = read_lines(path)
    has_version = bool(lines) and lines[0].startswith("#version:")
    if has_version and lines[0].split()[-1] != "0.2":
        raise DataError(f"says {lines[0]!r}: Weft reads version 0.2.", path, 1)
    merges: dict[Merge, None] = {}
    for number, line in enumerate(lines[has_version:], 1 + has_version):
        parts = line.split(" ")
        # version 0.1 has neither a header nor counts, and marks the end of a word by its own piece
        if len(parts) != (2 if has_version else 3) or not all(parts):
            raise DataError(f"is {line[:80]!r}: it must be two pieces to merge.", path, number)
        merges.setdefault((parts[0], parts[1]))
    return list(merges)


def read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError("there is no such file. Copy the whole model folder.", path) from None
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text. Copy the file again.", path) from None
    # split at \n only: a piece may contain other characters at which str.splitlines splits
    return text.removesuffix("\n").split("\n") if text else []


def source_tokenizer(
    pieces: Sequence[str], merges: Sequence[Merge], lowercase: bool | None = None
) -> Tokenizer:
    """Tokenizer of the source; ids from len(pieces) on stand for <unk>. `lowercase` None: if no
    piece has a capital letter."""
    vocabulary = library_names(pieces)
    used = reachable_merges(vocabulary, merges)
    for symbol in (symbol for merge in used for symbol in merge):
        vocabulary.setdefault(symbol, len(vocabulary))
    return build_tokenizer(
        vocabulary, used, is_lowercase(pieces) if lowercase is None else lowercase
    )


def target_tokenizer(pieces: Sequence[str], merges: Sequence[Merge]) -> Tokenizer:
    """Tokenizer of the target. It can also encode, except words whose merges go through a pair
    that is not in the dictionary: the model has no output for it."""
    vocabulary = library_names(pieces)
    used = [(a, b) for a, b in merges if {a, b, a + b} <= vocabulary.keys()]
    return build_tokenizer(vocabulary, used, is_lowercase(pieces))


def is_lowercase(pieces: Sequence[str]) -> bool:
    return all(piece == piece.lower() for piece in pieces)


def library_names(pieces: Sequence[str]) -> dict[str, int]:
    """Pieces under the names of the `tokenizers` library, with their ids."""
    names = [
        piece.removesuffix(CONTINUES) if piece.endswith(CONTINUES) else piece + WORD_END
        for piece in pieces[len(SPECIAL_TOKENS) :]
    ]
    return {name: index for index, name in enumerate((*SPECIAL_TOKENS, *names))}


def reachable_merges(vocabulary: dict[str, int], merges: Sequence[Merge]) -> list[Merge]:
    """The merges that lead to a piece of the vocabulary."""
    wanted, used = set(vocabulary), []
    # a merge precedes those that build on it
    for first, second in reversed(merges):
        if first + second in wanted:
            wanted |= {first, second}
            used.append((first, second))
    return used[::-1]


def build_tokenizer(vocabulary: dict[str, int], merges: list[Merge], lowercase: bool) -> Tokenizer:
    model = models.BPE(vocabulary, merges, unk_token=SPECIAL_TOKENS[3], end_of_word_suffix=WORD_END)
    backend = Backend(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    backend.decoder = decoders.BPEDecoder(suffix=WORD_END)
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    return Tokenizer(backend, SpecialTokens(pad="<pad>", begin="<s>", end="</s>", unknown="<unk>"))
