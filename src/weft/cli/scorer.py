"""Validation scores of translations during training: validation pairs -> BLEU, chrF, exact match.

`training` and `engine` do not import each other; the command line connects them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.models.build import Model
    from weft.text.tokenizer import Tokenizer
    from weft.training.loop import ScoreTranslations


def greedy_scorer(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> ScoreTranslations:
    """A function that translates the sources greedily and scores the translations."""
    from weft.checkpoint.weft_folder import Checkpoint
    from weft.engine.loaded_model import LoadedModel
    from weft.nn.packed_modules import unpack_model
    from weft.text.metrics import score

    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def scores(model: Model) -> dict[str, float]:
        was_training = model.training
        try:
            loaded = LoadedModel(Checkpoint(model, tokenizer, "translate"))
            translations = loaded.translate(sources)
        finally:
            # the engine packs the weights of the model in training
            unpack_model(model)
            model.train(was_training)
        result = score(translations, references)
        return {"bleu": result.bleu, "chrf": result.chrf, "exact_match": result.exact_match}

    return scores
