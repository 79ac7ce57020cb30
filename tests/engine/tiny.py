"""A tiny random model with a real tokenizer, in memory or as a folder."""

from collections.abc import Iterable
from pathlib import Path

import torch

from weft.checkpoint.weft_folder import Checkpoint, save_folder
from weft.engine.detokenizer import Detokenizer
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

LINES = ["the cat sat on the mat", "我吃了苹果，它很甜", "a dog ate two apples"]
TASKS = {"encoder-decoder": "translate", "decoder": "lm", "encoder": "mlm"}
SIZES = {"width": 32, "num_layers": 2, "max_len": 40, "dropout": 0.0}


def tiny(kind: str = "encoder-decoder", seed: int = 3, **changes) -> Checkpoint:
    """Its next tokens are far from equally likely and depend on what was read."""
    # translations are easier to read without bytes; streams are to be tested with them
    config = TokenizerConfig(vocab_size=320, byte_fallback=kind == "decoder")
    tokenizer = Tokenizer.train(LINES * 3, config)
    settings = {"kind": kind, "vocab_size": tokenizer.vocab_size, **SIZES, **changes}
    model = build_model(ModelConfig.from_dict(settings), seed=seed).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0 if weight.ndim > 1 else 1.0)
    return Checkpoint(model, tokenizer, TASKS[kind], {"bleu": 12.5})


def tiny_folder(path: Path, kind: str = "encoder-decoder", **changes) -> Path:
    save_folder(path, tiny(kind, **changes))
    return path


def pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """The text of ids as it would be shown, piece by piece."""
    stream = Detokenizer(tokenizer)
    parts = [stream.append(token) for token in ids]
    return [part for part in [*parts, stream.finalize()] if part]
