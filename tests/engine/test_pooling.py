"""Vectors of texts: each pooling against a loop over tokens, whatever shares the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.loaded_model import LoadedModel
from weft.models.transformer import Encoder

from .tiny import LINES, tiny


def loaded(pooling: str = "mean", max_tokens: int | None = None) -> LoadedModel:
    checkpoint = tiny("encoder")
    use = replace(checkpoint.generation_config, pooling=pooling, max_tokens=max_tokens)
    tokenizer = checkpoint.tokenizer.with_max_len(max_tokens)
    return LoadedModel(replace(checkpoint, generation_config=use, tokenizer=tokenizer))


def vectors(model: LoadedModel, text: str) -> Tensor:
    """x_TD of one text alone."""
    assert isinstance(model.model, Encoder)
    ids_1T = torch.tensor([model.tokenizer.encode(text)])
    with torch.no_grad():
        return model.model.encoder(ForwardBatch(ids_1T))[0]


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_each_pooling_is_that_of_a_text_alone(pooling: str) -> None:
    model = loaded(pooling)
    got_BD = model.embed(LINES)
    for text, got_D in zip(LINES, got_BD, strict=True):
        x_TD = vectors(model, text)
        expected_D = {"mean": x_TD.mean(0), "first": x_TD[0], "last": x_TD[-1]}[pooling]
        torch.testing.assert_close(got_D, F.normalize(expected_D, dim=0), atol=1e-5, rtol=1e-5)


def test_a_longer_text_is_cut_where_the_model_was_made_for_and_counted() -> None:
    model = loaded(max_tokens=6)
    long, short = "the cat sat on the mat", "cat"
    got_BD = model.embed([long, short])
    report = model.tokenizer.report
    assert (report.cut_lines, report.limit, report.lines) == (1, 6, 2)
    whole = loaded()
    ids = model.tokenizer.encode(long)
    assert len(ids) == 6 < len(whole.tokenizer.encode(long)) and ids[-1] == whole.tokenizer.end_id
    assert torch.equal(got_BD[1], whole.embed([short])[0])
    assert not torch.allclose(got_BD[0], whole.embed([long])[0])


def test_a_pooling_that_is_not_computed_is_refused() -> None:
    with pytest.raises(UsageError, match="'max_tokens': Weft has mean, first, last"):
        loaded("max_tokens").embed(["a"])


@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_bits_do_not_depend_on_the_pages_that_texts_are_read_in(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected_BD = loaded().embed(LINES)
    monkeypatch.setattr("weft.engine.model_runner.SCRATCH_PAGE_SIZE", num_rows)
    assert torch.equal(loaded().embed(LINES), expected_BD)
