"""`weft bench train`: every system learns from the same batches, and all are counted alike."""

from __future__ import annotations

import json

import pytest
import torch

from weft.bench.train import SYSTEMS, TrainingWorkload, measure, num_target_tokens
from weft.cli.app import main
from weft.text.packing import IGNORE

SMALL = TrainingWorkload(vocab_size=60, batch_tokens=120, num_batches=2)


def test_batches_repeat_with_their_seed_and_pad_on_the_right() -> None:
    first, again = SMALL.batches(), SMALL.batches()
    assert all(torch.equal(a.ids_BT, b.ids_BT) for a, b in zip(first, again, strict=True))
    for batch in first:
        assert num_target_tokens(batch) == int(batch.lengths_B.sum()) <= 120
        for row, length in zip(batch.targets_BT, batch.lengths_B.tolist(), strict=True):
            assert (row[:length] != IGNORE).all() and (row[length:] == IGNORE).all()


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_learns(name: str) -> None:
    """The same batch again and again: the loss that a step is taken on must fall."""
    batch, step = SMALL.batches()[0], SYSTEMS[name](SMALL)
    losses: list[float] = []
    backward = torch.Tensor.backward

    def seen(loss: torch.Tensor) -> None:
        losses.append(loss.item())
        backward(loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", seen)
        for _ in range(40):
            step(batch)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_rows_and_ratios_name_every_system() -> None:
    result = measure(["weft", "torch"], SMALL, repeats=1, threads=1)
    assert [row["system"] for row in result["rows"]] == ["weft", "torch"]
    speeds = {row["system"]: row["tokens_per_second"] for row in result["rows"]}
    assert result["ratios"] == {"weft/torch": pytest.approx(speeds["weft"] / speeds["torch"])}
    assert result["machine"]["torch"] == torch.__version__


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-tokens", "64", "--batches", "1", "--repeats", "1", "--threads", "1"]
    assert main(["bench", "train", "--systems", "torch", *options, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["ratios"]) == {"weft/torch"}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_weft_is_faster_than_marian_by_half_and_twice_as_fast_as_torch() -> None:
    ratios = measure(list(SYSTEMS), TrainingWorkload(), repeats=5, threads=2)["ratios"]
    assert ratios["weft/marian"] >= 1.5 and ratios["weft/torch"] >= 2.0, ratios
