"""Validation: a model and held-out data -> loss per token, and scores of its translations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from weft.models.build import Model
from weft.training.data.base import Data
from weft.training.loss import LossRule
from weft.training.processes import LossOf, Processes

Translate = Callable[[Model], dict[str, float]]
"""Translates some of the validation data with a model and scores it: {"bleu": ..., "chrf": ...}."""


@torch.no_grad()
def validate(model: Model, loss_of: LossOf, data: Data, processes: Processes) -> dict[str, float]:
    """Mean loss of a token without smoothing, and its perplexity. The model's mode is kept."""
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for rows in data.plan(0):
        total += loss_of(data.load(0, rows).to(processes.device), LossRule()).item()
        tokens += data.count_targets(0, rows)
    model.train(was_training)
    loss = processes.sum(total) / tokens
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
