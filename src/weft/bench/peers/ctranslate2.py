# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""CTranslate2 as a measured system: float32, a Marian-shaped Hugging Face folder, ids as tokens.

Two ways of using the cores are tried on the first sources for each beam width: all of them on one
batch, or one batch per core. The faster one is used.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import ctranslate2
from ctranslate2.converters import transformers as converters

BATCH = 32
"""Sources of about the same length that are translated together."""
NUM_TRIED = 256


class IdLoader(converters.BartLoader):
    """A Marian-shaped model whose tokens are ids. CTranslate2's Marian loader uses the last id as
    padding and starts from an embedding of zeros, as OPUS-MT does; Weft's start from a token."""

    architecture_name = "MarianMTModel"

    def get_model_spec(self, model: Any) -> Any:
        model.config.normalize_before = model.config.normalize_embedding = False
        return super().get_model_spec(model)

    def get_vocabulary(self, model: Any, tokenizer: Any) -> list[str]:
        return [str(token) for token in range(model.config.vocab_size)]

    def set_config(self, config: Any, model: Any, tokenizer: Any) -> None:
        config.bos_token = config.decoder_start_token = str(model.config.decoder_start_token_id)
        config.eos_token = str(model.config.eos_token_id)
        config.unk_token = str(model.config.pad_token_id)


class IdConverter(converters.TransformersConverter):
    """Without a tokenizer."""

    def load_tokenizer(self, *arguments: Any, **settings: Any) -> None:
        return None


class System:
    """One model, loaded once for each way of using the cores."""

    version = ctranslate2.__version__

    def __init__(self, model: str, threads: int, max_len: int) -> None:
        converters.register_loader("MarianConfig")(IdLoader)
        self.note = ""
        self.best: dict[int, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            IdConverter(model).convert(folder, quantization="float32", force=True)
            ways = dict.fromkeys([(threads, 1), (1, threads)])
            self.translators = {
                f"intra {intra} x inter {inter}": ctranslate2.Translator(
                    folder, compute_type="float32", intra_threads=intra, inter_threads=inter
                )
                for intra, inter in ways
            }

    def translate(self, sources: list[list[int]], beam: int, max_tokens: int) -> list[list[int]]:
        """The best translation of each source, all at once."""
        if beam not in self.best:
            self.best[beam] = self.fastest(sources[:NUM_TRIED], beam, max_tokens)
        self.note = self.best[beam]
        return self.translate_by(self.note, sources, beam, max_tokens)

    def fastest(self, sources: list[list[int]], beam: int, max_tokens: int) -> str:
        """The faster of the ways, each measured after a warm-up."""
        seconds: dict[str, float] = {}
        for name in [*self.translators, *self.translators]:
            begin = time.perf_counter()
            self.translate_by(name, sources, beam, max_tokens)
            seconds[name] = time.perf_counter() - begin
        return min(seconds, key=lambda name: seconds[name])

    def translate_by(
        self, name: str, sources: list[list[int]], beam: int, max_tokens: int
    ) -> list[list[int]]:
        results = self.translators[name].translate_batch(
            [[str(token) for token in source] for source in sources],
            beam_size=beam,
            length_penalty=1.0,
            max_decoding_length=max_tokens,
            max_batch_size=BATCH,
        )
        return [[int(token) for token in one.hypotheses[0]] for one in results]
