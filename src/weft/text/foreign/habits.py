"""What the files of a tokenizer leave unsaid, by family: names of special tokens, and whether a
text gets a begin and an end.

The family is the class that tokenizer_config.json names, else the type of the model. What the files
do say goes before any habit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.text.specials import Specials

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text before its byte-level merges, in place of GPT-2's pattern."""


@dataclass(frozen=True)
class Habits:
    """The customs of one family."""

    names: Specials = Specials()
    """Used where the vocabulary has them and the files name no other."""
    add_begin: bool = False
    add_end: bool = False
    words: str | None = None
    """The pattern that cuts text before byte-level merges; None: GPT-2's."""
    compose: bool = False
    """True: characters are composed (NFC) first."""
    extra_ids: int = 0
    """Sentinels <extra_id_N> behind the vocabulary, the last one first."""
    fairseq_ids: bool = False
    """True: pieces are moved by one, behind the special tokens in fairseq's order."""


GPT2 = Habits(Specials(begin="<|endoftext|>", end="<|endoftext|>", unknown="<|endoftext|>"))
FAIRSEQ = Habits(Specials("<pad>", "<s>", "</s>", "<unk>", "<mask>"), True, True)
BERT = Habits(Specials("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"), True, True)
LLAMA = Habits(Specials(None, "<s>", "</s>", "<unk>"), add_begin=True)
T5 = Habits(Specials("<pad>", None, "</s>", "<unk>"), add_end=True, extra_ids=100)
QWEN2 = Habits(
    Specials("<|endoftext|>", None, "<|endoftext|>", "<|endoftext|>"),
    words=QWEN2_WORDS,
    compose=True,
)

HABITS: dict[str, Habits] = {
    "gpt2": GPT2,
    "roberta": FAIRSEQ,
    "bart": FAIRSEQ,
    "led": FAIRSEQ,
    "longformer": FAIRSEQ,
    "mvp": FAIRSEQ,
    "deberta": BERT,
    "qwen2": QWEN2,
    "qwen3": QWEN2,
    "bert": BERT,
    "distilbert": BERT,
    "electra": BERT,
    "mpnet": FAIRSEQ,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "gemma": replace(LLAMA, names=Specials("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")),
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "xlmroberta": replace(FAIRSEQ, fairseq_ids=True),
    "marian": Habits(Specials("<pad>", None, "</s>", "<unk>"), add_end=True),
}

OTHER_WAYS = {
    "albert", "barthez", "bertgeneration", "bertjapanese", "bertweet", "bigbird", "blenderbot",
    "blenderbotsmall", "byt5", "camembert", "canine", "clip", "cpm", "ctrl", "debertav2", "esm",
    "flaubert", "fnet", "fsmt", "herbert", "m2m100", "mbart", "mbart50", "nllb", "openaigpt",
    "pegasus", "phobert", "plbart", "reformer", "rembert", "rocbert", "roformer", "splinter",
    "wav2vec2", "whisper", "xglm", "xlm", "xlnet",
}  # fmt: skip
"""Families whose files look like known ones but are read differently, unlike tokenizer.json."""

NO_FAMILY = re.compile(r"(pretrained|tokenizersbackend)", re.IGNORECASE)


def family_name(settings: Mapping[str, Any], model_type: str | None) -> str | None:
    """'LlamaTokenizerFast' -> 'llama', 'xlm-roberta' -> 'xlmroberta'; None: nobody says."""
    told = settings.get("tokenizer_class")
    named = told if isinstance(told, str) and not NO_FAMILY.match(told) else model_type
    if named is None:
        return None
    return re.sub(r"[-_]", "", re.sub(r"Tokenizer(Fast)?$", "", named)).lower()
