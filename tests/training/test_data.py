"""Files -> batches: each row once an epoch, the same for the same seed, every problem an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.core.errors import DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.text.packing import IGNORE, PackedSamples
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig
from weft.training.data.files import TrainingFiles
from weft.training.data.pairs import PairData, PairDataConfig
from weft.training.data.texts import TextData, TextDataConfig, collate_samples
from weft.training.data.tokens import TokenFile
from weft.training.distributed import DistributedContext
from weft.training.objective import Batch
from weft.training.recipe import DataConfig
from weft.training.run import training_files

from .material import write_pairs

PAIRS = [(f"a{i} b c", f"x{i} y" + " z" * (i % 5)) for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [text for pair in PAIRS for text in pair]
    return Tokenizer.train(lines, TokenizerConfig(vocab_size=300))


def pair_data(tokenizer: Tokenizer, **changes: object) -> PairData:
    return PairData(
        PAIRS, tokenizer, PairDataConfig(**{"max_len": 40, "batch_tokens": 60, **changes})
    )


def test_an_epoch_holds_every_pair_once_and_another_epoch_another_order(
    tokenizer: Tokenizer,
) -> None:
    data = pair_data(tokenizer)
    first, again, second = data.plan(0), data.plan(0), data.plan(1)
    assert first == again != second
    assert sorted(row for rows in first for row in rows) == list(range(len(PAIRS)))


def test_targets_are_the_input_one_token_later(tokenizer: Tokenizer) -> None:
    data = pair_data(tokenizer)
    rows = data.plan(0)[0]
    batch = data.load(0, rows)
    for i, row in enumerate(rows):
        ids = tokenizer.encode(PAIRS[row][1])
        n = len(ids) - 1
        assert batch.ids_BT[i, :n].tolist() == ids[:-1]
        assert batch.targets_BT[i, :n].tolist() == ids[1:]
        assert batch.targets_BT[i, n:].eq(IGNORE).all()
        source = tokenizer.encode(PAIRS[row][0])
        assert batch.source_BS[i, : len(source)].tolist() == source
    assert data.count_targets(0, rows) == int((batch.targets_BT != IGNORE).sum())


class OneOfThree(DistributedContext):
    """A process that knows its own rows only; the lengths of the others stay zero."""

    def gather_rows(self, local_rows: np.ndarray, num_rows: int) -> np.ndarray:
        rows = np.zeros((num_rows, *local_rows.shape[1:]), dtype=local_rows.dtype)
        rows[self.rank :: self.world_size] = local_rows
        return rows

    def sum(self, value: float) -> float:
        return value


def test_processes_encode_their_own_rows_and_together_make_up_the_batch(
    tokenizer: Tokenizer,
) -> None:
    whole, settings = pair_data(tokenizer), PairDataConfig(max_len=40, batch_tokens=60)
    parts = [PairData(PAIRS, tokenizer, settings, OneOfThree(rank, 3)) for rank in range(3)]
    assert [len(part.local_pairs) for part in parts] == [14, 13, 13]
    for rows in whole.plan(0):
        loaded = [part.load(0, rows) for part in parts]
        result = [ids for batch in loaded for ids in sentences(batch)]
        assert sorted(result) == sorted(sentences(whole.load(0, rows)))


def sentences(batch: Batch) -> list[list[int]]:
    """The targets of each row that has some."""
    rows = [row[row != IGNORE].tolist() for row in batch.targets_BT]
    return [row for row in rows if row]


def test_bpe_dropout_draws_anew_each_epoch_and_repeats_with_its_seed(tokenizer: Tokenizer) -> None:
    def ids(epoch: int) -> list[list[int]]:
        data = pair_data(tokenizer, bpe_dropout=0.5)
        return [data.encoded(epoch).targets[row].tolist() for row in range(len(PAIRS))]

    assert ids(1) == ids(1) != ids(2)
    for row, row_ids in enumerate(ids(1)):
        assert tokenizer.decode(row_ids) == PAIRS[row][1]


def test_empty_sides_are_skipped_and_too_many_are_refused(tokenizer: Tokenizer) -> None:
    settings = PairDataConfig(max_len=40, batch_tokens=60)
    data = PairData([*PAIRS, ("", "x")], tokenizer, settings)
    assert data.num_pairs == len(PAIRS)
    with pytest.raises(DataError, match="10 of 50 pairs have an empty side.*20%.*allows 10%"):
        PairData([*PAIRS, *[("a", " ")] * 10], tokenizer, settings)


def test_long_lines_are_counted_and_too_many_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="lines are longer than 4 tokens"):
        pair_data(tokenizer, max_len=4)


def text_data(
    folder: Path, texts: list[str], tokenizer: Tokenizer, settings: TextDataConfig
) -> TextData:
    TokenFile.write(folder / "ids", texts, tokenizer)
    return TextData(TokenFile.open(folder / "ids"), tokenizer, settings)


def test_a_stream_is_cut_elsewhere_each_epoch_and_nothing_is_lost(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    settings = TextDataConfig(sample_len=7, batch_tokens=21, documents="file")
    data = text_data(tmp_path, ["a b c " * 50], tokenizer, settings)
    total = data.num_tokens - 1
    assert sum(data.count_targets(0, rows) for rows in data.plan(0)) == total
    firsts = {tuple(data.samples(epoch)[0].ids_T.tolist()) for epoch in range(1, 6)}
    assert len(firsts) > 1
    batch = data.load(1, data.plan(1)[0])
    assert batch.documents_BT is None


def test_mlm_masks_the_configured_share_and_predicts_only_those_tokens(
    tmp_path: Path,
    tokenizer: Tokenizer,
) -> None:
    settings = TextDataConfig(sample_len=50, batch_tokens=50, objective="mlm", mask_share=0.3)
    texts = [text for pair in PAIRS for text in pair] * 5
    data = text_data(tmp_path, texts, tokenizer, settings)
    rows = list(range(len(data.samples(0))))
    num_predicted = sum(int((data.masked(0, row).targets_T != IGNORE).sum()) for row in rows)
    assert data.count_targets(0, rows) == num_predicted
    num_masked = total = 0
    for row in rows:
        plain, masked = data.samples(0)[row], data.masked(0, row)
        is_target = masked.targets_T != IGNORE
        assert (masked.targets_T[is_target] == plain.ids_T[is_target]).all()
        assert (masked.ids_T[~is_target] == plain.ids_T[~is_target]).all()
        total += plain.length
        num_masked += int((masked.ids_T[is_target] == tokenizer.mask_id).sum())
    assert num_predicted / total == pytest.approx(0.3, abs=0.04)
    assert num_masked / num_predicted == pytest.approx(0.8, abs=0.06)
    again = data.masked(0, 0)
    assert np.array_equal(again.ids_T, data.masked(0, 0).ids_T)
    assert not np.array_equal(again.ids_T, data.masked(1, 0).ids_T)


def test_files_read_pairs_tsv_and_text(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, lines=3)
    pairs = list(TrainingFiles("translate", (source, target)).pairs("train"))
    assert all(a == b[::-1] for a, b in pairs) and len(pairs) == 3
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs)))
    assert list(TrainingFiles("translate", (tsv,), columns=(2, 3)).pairs("train")) == pairs
    lines = TrainingFiles("lm", (source,)).texts("train", "line")
    assert TrainingFiles("lm", (source,)).texts("train", "file") == ["\n".join(lines) + "\n"]
    assert sorted(TrainingFiles("translate", (tsv,), columns=(2, 3)).tokenizer_lines()) == sorted(
        text for pair in pairs for text in pair
    )


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, lines=3)
    with pytest.raises(UsageError, match="1 training files but pairs need 2"):
        TrainingFiles("translate", (source,))
    with pytest.raises(UsageError, match="there are no training files"):
        TrainingFiles("lm", ())
    with pytest.raises(DataError, match="no-such: there is no such file"):
        TrainingFiles("lm", (tmp_path / "no-such",)).fingerprint()
    with pytest.raises(DataError, match="this is a folder"):
        TrainingFiles("lm", (tmp_path,)).fingerprint()
    target.write_text("only one line\n")
    with pytest.raises(DataError, match="line"):
        list(TrainingFiles("translate", (source, target)).pairs("train"))


def test_text_with_nothing_to_predict_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="0 tokens: there is nothing to predict"):
        TokenFile.write(tmp_path / "ids", [" "], tokenizer)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="on a disk that they share"):
        TokenFile.open(tmp_path / "ids")


def test_the_file_of_ids_holds_every_document_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts = [f"a{i} b" for i in range(2500)]  # more than are encoded at once
    TokenFile.write(tmp_path / "ids", [*texts, " "], tokenizer)
    tokens = TokenFile.open(tmp_path / "ids")
    result = np.split(tokens.ids, tokens.starts[1:-1])
    assert [part.tolist() for part in result] == tokenizer.encode_batch(texts)


def test_documents_of_a_sample_are_numbered(tmp_path: Path, tokenizer: Tokenizer) -> None:
    settings = TextDataConfig(sample_len=16, batch_tokens=32)
    data = text_data(tmp_path, [p[0] for p in PAIRS], tokenizer, settings)
    batch = data.load(0, data.plan(0)[0])
    assert batch.documents_BT is not None and batch.documents_BT.shape == batch.ids_BT.shape
    assert torch.is_tensor(batch.targets_BT)


def test_samples_fit_a_forward_batch_whose_positions_restart_with_each_document() -> None:
    flat = np.array([1, 10, 11, 2, 1, 12, 2, 1, 13, 14, 15, 2], dtype=np.int32)
    batch = collate_samples(list(PackedSamples(flat, np.array([0, 4, 7, 12]), length=5)))
    forward = ForwardBatch(batch.ids_BT, batch.lengths_B, batch.documents_BT)
    assert forward.positions_BT.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert batch.targets_BT[1].tolist() == [13, 14, 15, 2, IGNORE]
    assert batch.lengths_B.tolist() == [5, 4]


@pytest.mark.parametrize("columns", [(0, 1), (1, -1)])
def test_columns_are_counted_from_one(tmp_path: Path, columns: tuple[int, int]) -> None:
    """Column 0 was the last one."""
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    with pytest.raises(UsageError, match=f"columns are {columns[0]} and {columns[1]}: they are"):
        TrainingFiles("translate", (tmp_path / "pairs.tsv",), columns=columns)


def test_a_run_does_not_read_pipes_and_standard_input(tmp_path: Path) -> None:
    """The first of several readers would get all lines, and the next one none."""
    source, target = write_pairs(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", str(tmp_path / "pipe"), os.devnull):
        with pytest.raises(UsageError, match=f"{name} is not a regular file: a run reads its"):
            training_files(DataConfig(pairs=(name, str(target))))
    folder, missing = str(tmp_path), str(tmp_path / "missing")
    assert training_files(DataConfig(pairs=(str(source), folder), valid=(missing, missing)))
