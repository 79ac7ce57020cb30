"""ModelConfig -> a model with fresh weights, or without any; the table of model kinds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.core.device import device_of
from weft.core.errors import ConfigError
from weft.core.registry import pick
from weft.models.config import ModelConfig
from weft.models.transformer import Decoder, Encoder, EncoderDecoder

AnyModel = EncoderDecoder | Decoder | Encoder

MODELS: dict[str, type[EncoderDecoder] | type[Decoder] | type[Encoder]] = {
    "encoder-decoder": EncoderDecoder,
    "decoder": Decoder,
    "encoder": Encoder,
}


def build_model(config: ModelConfig, seed: int = 0) -> AnyModel:
    """A model with weights drawn from `seed`; the same settings and seed give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = pick(MODELS, config.kind, "kind of model")(config)
        if device_of(model).type != "meta":
            initialize(model, config)
    return model


def empty_model(config: ModelConfig) -> AnyModel:
    """A model on the meta device: shapes without memory, to be counted or filled."""
    try:
        with torch.device("meta"), SkipInit():
            return build_model(config)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise ConfigError(
            [
                f"a {config.kind} of width {config.width} with these settings has a matrix of more "
                "than 2 ** 63 bytes. Use smaller sizes."
            ]
        ) from None


class SkipInit(TorchFunctionMode):
    """Skips torch.nn.init: on meta tensors it imports torch's compiler, which takes more than a
    second and 100 MB."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig) -> None:
    """Draw word embeddings with a standard deviation of width ** -0.5 and matrices by Xavier (or
    both by config.init_std); biases are 0. Norms and position tables keep their own initial values.
    """
    for name, weight in model.named_parameters():
        if ".position." in name:
            continue
        if weight.ndim >= 2:
            weight.normal_(0.0, config.init_std or init_std(name, weight, config.width))
        elif name.endswith("bias"):
            weight.zero_()


def init_std(name: str, weight: Tensor, width: int) -> float:
    """Standard deviation of a fresh matrix: word vectors have length 1, products preserve the
    variance."""
    is_table = ".words." in name or ".segments." in name or name == "head.weight"
    fan_out, fan_in = weight.shape[-2:]
    return width**-0.5 if is_table else math.sqrt(2 / (fan_in + fan_out))
