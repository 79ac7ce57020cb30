"""fairseq folders -> a Checkpoint with one tokenizer per language. Read only.

The files are described in fairseq_header.py. For ids of the source after those of its dictionary
the embedding repeats the row of <unk>. Ids equal fairseq's wherever all pieces are known; an
unknown word may become more <unk> than in fairseq.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from weft.checkpoint.fairseq_header import (
    PACKAGES,
    SOURCE_EMBEDDING,
    SPECIAL_TOKENS,
    WEIGHTS_FILES,
    WORD_END,
    Merge,
    first_existing,
    is_lowercase,
    library_names,
    read_header,
    read_options,
    settings_and_state,
    source_vocabulary,
)
from weft.checkpoint.families.fairseq import UNK
from weft.checkpoint.huggingface import TASKS, HFCheckpoint, build_hf, open_hf
from weft.checkpoint.pickle_files import is_plain_tensor, read_pickle
from weft.checkpoint.tensor_source import InMemorySource
from weft.checkpoint.weft_folder import Checkpoint
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer


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


def load_tokenizer(path: Path) -> Tokenizer:
    return combined_tokenizer(open_fairseq(path))


def combined_tokenizer(folder: FairseqFolder) -> Tokenizer:
    """The source tokenizer, with the target tokenizer for decoding."""
    source = folder.source_tokenizer
    return Tokenizer(source.backend, source.special_tokens, target=folder.target_tokenizer)


def open_fairseq(path: Path) -> FairseqFolder:
    """Open a folder; weights stay in the file until a model is built."""
    file, options = first_existing(path, WEIGHTS_FILES), read_options(path)
    settings, tensors = settings_and_state(read_pickle(file, PACKAGES), file, is_plain_tensor)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    header = read_header(path, settings, shapes)
    if header.num_source_ids > len(header.source):
        words_VD = tensors[SOURCE_EMBEDDING]
        more_VD = words_VD[UNK].expand(header.num_source_ids - len(words_VD), -1)
        tensors = {**tensors, SOURCE_EMBEDDING: torch.cat((words_VD, more_VD))}
    return FairseqFolder(
        header.values,
        InMemorySource(tensors, file),
        source_tokenizer(header.source, header.merges, options.lowercase),
        target_tokenizer(header.target, header.merges),
    )


def source_tokenizer(
    pieces: Sequence[str], merges: Sequence[Merge], lowercase: bool | None = None
) -> Tokenizer:
    """Tokenizer of the source. `lowercase` None: if no piece has a capital letter."""
    is_lower = is_lowercase(pieces) if lowercase is None else lowercase
    return build_tokenizer(*source_vocabulary(pieces, merges), is_lower)


def target_tokenizer(pieces: Sequence[str], merges: Sequence[Merge]) -> Tokenizer:
    """Tokenizer of the target. It can also encode, except words whose merges go through a pair
    that is not in the dictionary: the model has no output for it."""
    vocabulary = library_names(pieces)
    used = [(a, b) for a, b in merges if {a, b, a + b} <= vocabulary.keys()]
    return build_tokenizer(vocabulary, used, is_lowercase(pieces))


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
