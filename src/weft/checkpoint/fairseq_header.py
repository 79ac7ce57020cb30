"""fairseq folder -> settings, dictionaries and BPE merges, without torch.

    checkpoint_best.pt         weights and the training's settings (pickle_header.py)
    dict.SRC.txt dict.TGT.txt  "ab@@ 17" per line: a piece (here one that does not end its word) and
                               a count; ids follow those of <s> <pad> </s> <unk>
    bpe.code                   "a b</w>" per line, best merge first, for both languages (subword-nmt
                               0.2, or fastBPE with a count at the end)
    weft.json                  optional: settings that only the calling code defined (lowercase)

The source dictionary is identified by the sizes of the embeddings, otherwise by the language names
in the settings. Pieces have the names that the `tokenizers` library gives them: "ab" inside a word,
"ab</w>" at its end. Some merges go through a pair that never occurs by itself and therefore is not
in the dictionary; the source gets an id for it after the dictionary's.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.hf_header import read_hf_header
from weft.checkpoint.model_catalog import METADATA_FILE
from weft.checkpoint.pickle_header import TensorSize, read_values
from weft.checkpoint.weight_rules import Shape
from weft.core.config import Config, read_settings
from weft.core.errors import DataError
from weft.models.config import ModelConfig

PACKAGES = frozenset(("fairseq", "numpy", "omegaconf"))
"""Packages whose classes occur in fairseq checkpoints beside the weights."""
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
class FairseqHeader:
    """The contents of a folder besides its weights."""

    values: dict[str, Any]
    """Settings for the fairseq family, with model_type and the sizes of both vocabularies."""
    source: list[str]
    """Pieces in the order of their ids."""
    target: list[str]
    merges: list[Merge]
    num_source_ids: int
    """Those of the dictionary, and then some that stand for <unk>."""


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    """Family and settings of a folder."""
    file = first_existing(path, WEIGHTS_FILES)
    value = read_values(file, PACKAGES)
    if value is None:
        from weft.checkpoint.fairseq_files import open_fairseq  # imports torch

        folder = open_fairseq(path)
        values, shapes = folder.values, folder.source.shapes
    else:
        settings, sizes = settings_and_state(value, file, lambda size: type(size) is TensorSize)
        shapes = {name: size.shape for name, size in sizes.items()}
        header = read_header(path, settings, shapes)
        values, width = header.values, shapes[SOURCE_EMBEDDING][1:]
        shapes = {**shapes, SOURCE_EMBEDDING: (header.num_source_ids, *width)}
    hf_header = read_hf_header(values, values, path, shapes, file)
    return hf_header.family.name, hf_header.config


def read_header(
    path: Path, settings: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> FairseqHeader:
    """The header of a folder whose checkpoint has these settings and shapes. An embedding that is
    shared with the target is separated from it if the source has more ids than its dictionary,
    because the output has no such ids."""
    dictionaries = {
        dictionary.name.split(".")[1]: read_dictionary(dictionary)
        for dictionary in sorted(path.glob("dict.*.txt"))
    }
    source, target = choose_dictionaries(dictionaries, settings, shapes, path)
    merges = read_merges(first_existing(path, BPE_FILES))
    vocabulary, _ = source_vocabulary(source, merges)
    values = {
        **settings,
        "model_type": "fairseq",
        "source_vocab_size": len(vocabulary),
        "target_vocab_size": len(target),
    }
    if len(vocabulary) > len(source) and settings.get("share_all_embeddings"):
        values |= {"share_all_embeddings": False, "share_decoder_input_output_embed": True}
    return FairseqHeader(values, source, target, merges, len(vocabulary))


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


def settings_and_state(
    value: object, file: Path, is_tensor: Callable[[object], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of model and task in one dictionary, and the weights or their sizes."""
    values = as_dict(value)
    state = values.get("model")
    if not isinstance(state, dict) or not all(map(is_tensor, state.values())):
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
    shapes: Mapping[str, Shape],
    path: Path,
) -> tuple[list[str], list[str]]:
    """The dictionaries of source and target."""
    sizes = shapes[SOURCE_EMBEDDING][0], shapes[TARGET_EMBEDDING][0]
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


def is_lowercase(pieces: Sequence[str]) -> bool:
    return all(piece == piece.lower() for piece in pieces)


def library_names(pieces: Sequence[str]) -> dict[str, int]:
    """Pieces under the names of the `tokenizers` library, with their ids."""
    names = [
        piece.removesuffix(CONTINUES) if piece.endswith(CONTINUES) else piece + WORD_END
        for piece in pieces[len(SPECIAL_TOKENS) :]
    ]
    return {name: index for index, name in enumerate((*SPECIAL_TOKENS, *names))}


def source_vocabulary(
    pieces: Sequence[str], merges: Sequence[Merge]
) -> tuple[dict[str, int], list[Merge]]:
    """Ids of the pieces and of the pairs that merges go through, which come after them, and the
    merges that lead to a piece."""
    vocabulary = library_names(pieces)
    used = reachable_merges(vocabulary, merges)
    for symbol in (symbol for merge in used for symbol in merge):
        vocabulary.setdefault(symbol, len(vocabulary))
    return vocabulary, used


def reachable_merges(vocabulary: dict[str, int], merges: Sequence[Merge]) -> list[Merge]:
    """The merges that lead to a piece of the vocabulary."""
    wanted, used = set(vocabulary), []
    # a merge precedes those that build on it
    for first, second in reversed(merges):
        if first + second in wanted:
            wanted |= {first, second}
            used.append((first, second))
    return used[::-1]
