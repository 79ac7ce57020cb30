"""Settings -> a model with fresh weights. The table of model kinds is here."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weft.core.device import device_of
from weft.core.registry import pick
from weft.models.config import ModelConfig
from weft.models.transformer import Decoder, Encoder, EncoderDecoder

Model = EncoderDecoder | Decoder | Encoder

MODELS: dict[str, type[EncoderDecoder] | type[Decoder] | type[Encoder]] = {
    "encoder-decoder": EncoderDecoder,
    "decoder": Decoder,
    "encoder": Encoder,
}


def build_model(config: ModelConfig, seed: int = 0) -> Model:
    """A model with weights drawn from `seed`; the same settings and seed give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = pick(MODELS, config.kind, "kind of model")(config)
        if device_of(model).type != "meta":
            initialise(model, config)
    return model


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Draw words by width ** -0.5 and matrices by Xavier (or both by init_std); biases begin at 0.

    Norms, and the tables of positions, keep what their own layers drew.
    """
    for name, weight in model.named_parameters():
        if ".position." in name:
            continue
        if weight.ndim >= 2:
            weight.normal_(0.0, config.init_std or spread(name, weight, config.width))
        elif name.endswith("bias"):
            weight.zero_()


def spread(name: str, weight: Tensor, width: int) -> float:
    """Standard deviation of a fresh matrix: a word's vector has length 1, a product keeps its
    input's size."""
    is_table = ".words." in name or ".segments." in name or name == "head.weight"
    fan_out, fan_in = weight.shape[-2:]
    return width**-0.5 if is_table else math.sqrt(2 / (fan_in + fan_out))
