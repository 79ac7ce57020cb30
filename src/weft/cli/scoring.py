"""Scores of translations while a model is being trained: validation pairs -> BLEU and chrF.

Training and the engine are strangers; the command line knows both and brings them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.models.build import Model
    from weft.text.tokenizer import Tokenizer
    from weft.training.loop import ScoreTranslations


def greedy_scorer(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> ScoreTranslations:
    """A function that translates the sources greedily and scores the result."""
    from weft.checkpoint.weft_folder import Checkpoint
    from weft.engine.model import LoadedModel
    from weft.nn.packed_modules import unpack_model
    from weft.text.metrics import score

    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def scores(model: Model) -> dict[str, float]:
        was_training = model.training
        try:
            found = LoadedModel(Checkpoint(model, tokenizer, "translate")).translate(sources)
        finally:
            # the engine packs the weights of the model in training
            unpack_model(model)
            model.train(was_training)
        told = score(found, references)
        return {"bleu": told.bleu, "chrf": told.chrf, "exact_match": told.exact_match}

    return scores
