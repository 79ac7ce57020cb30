"""Settings -> a model: what is tied is one table, and a seed fixes every weight."""

from __future__ import annotations

import torch

from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.models.transformer import EncoderDecoder

SIZES = {"vocab_size": 31, "width": 32, "num_layers": 2}


def tables(tied: str) -> tuple[int, int, int]:
    """Which of the three word tables (source, target, output) are the same tensor."""
    model = build_model(ModelConfig(**SIZES, embedding={"tied": tied}))
    assert isinstance(model, EncoderDecoder)
    result = [model.encoder.embedding.words, model.decoder.embedding.words, model.head]
    first = [id(table.weight) for table in result]
    return tuple(first.index(i) for i in first)


def test_tied_words_are_one_tensor() -> None:
    assert tables("all") == (0, 0, 0)
    assert tables("output") == (0, 1, 1)
    assert tables("none") == (0, 1, 2)


def test_a_seed_fixes_every_weight_and_leaves_the_global_state_alone() -> None:
    config = ModelConfig(**SIZES, position={"kind": "learned"}, feedforward={"kind": "experts"})
    before = torch.random.get_rng_state()
    first, second, third = (build_model(config, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    words = [model.decoder.embedding.words.weight for model in (first, third)]
    assert not torch.equal(*words)


def test_the_first_output_is_neither_silent_nor_loud() -> None:
    """Fresh weights give logits of about unit size: the loss begins near log(vocabulary)."""
    from weft.core.forward_batch import ForwardBatch

    for placement in ("before", "after"):
        config = ModelConfig(
            kind="decoder", vocab_size=500, width=128, norm={"placement": placement}
        )
        model = build_model(config).eval()
        ids_BT = torch.randint(0, 500, (4, 20))
        with torch.no_grad():
            logits_BTV = model(ForwardBatch(ids_BT))
        assert 0.2 < logits_BTV.std() < 2.0
