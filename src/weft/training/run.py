"""A recipe, files and a folder -> a trained model in that folder: what `weft train` and `weft demo`
call.

    files -> tokenizer -> ids -> batches -> model -> OUT

The same call again goes on where the last one stopped, or returns at once when nothing is left to
do. What decides the result is written to OUT/run.json before any work is done.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.weft_folder import SCORES_FILE, Checkpoint, copy_state, save_folder, write_json
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.build import Model, build_model
from weft.text.tokenizer import Tokenizer
from weft.training.data.base import Data
from weft.training.data.files import Files, Pair
from weft.training.data.pairs import PairData, PairSettings
from weft.training.data.texts import TextData, TextSettings
from weft.training.data.tokens import TokenFile
from weft.training.evaluate import Translate, validate
from weft.training.loop import Trainer, Watch
from weft.training.metrics import Metrics
from weft.training.objective import batch_loss
from weft.training.processes import LossOf, Processes, join
from weft.training.resume import Checkpoints, refuse_changes
from weft.training.settings import Recipe
from weft.training.signals import stop_on_signals

log = logging.getLogger(__name__)

TOKENS = "tokens"
"""The folder of a text run's ids."""
MakeTranslate = Callable[[list[Pair], Tokenizer], Translate]
"""Builds the scorer of validation translations; the caller brings it, as it needs an engine."""


@dataclass(frozen=True)
class Corpus:
    """The two parts of a run's data, and the validation pairs as text."""

    train: Data
    valid: Data | None
    valid_pairs: list[Pair]


def run_training(
    recipe: Recipe,
    files: Files,
    out: Path,
    watch: Watch = lambda progress: None,
    translate: MakeTranslate | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Train, or go on training, the model in `out`; its scores. See the module's docstring."""
    with join(torch.device(device)) as processes:
        # a function of its own: the model's links to other processes must be gone before they are
        return run_in(processes, recipe, files, out, watch, translate)


def run_in(
    processes: Processes,
    recipe: Recipe,
    files: Files,
    out: Path,
    watch: Watch,
    translate: MakeTranslate | None,
) -> dict[str, Any]:
    """One process's part of the run."""
    processes.first_does(lambda: open_folder(recipe, files, out))
    if (out / SCORES_FILE).is_file():
        log.info("run=finished out=%s", out)
        return read_settings(out / SCORES_FILE)
    processes.first_does(lambda: make_tokenizer(recipe, files, out))
    tokenizer = Tokenizer.load(out)
    corpus = read_corpus(recipe, files, tokenizer, out, processes)
    trainer = build_trainer(recipe, files, out, corpus, tokenizer, translate, processes)
    if trainer.resume():
        log.info("resume step=%d out=%s", trainer.state.step, out)
    with stop_on_signals() as stop:
        trainer.run(watch, stop)
    return finish(trainer, files, out, corpus, tokenizer)


def open_folder(recipe: Recipe, files: Files, out: Path) -> None:
    """Make the folder and write down what this run is, or find the same run there."""
    settings = recipe.to_dict()
    del settings["data"]  # files count by what they hold, not by where they lie
    described = {"recipe": settings, "files": files.fingerprint()}
    try:
        if not refuse_changes(out / "run.json", described):
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / "run.json", described)
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        reason = error.strerror
        raise DataError(f"cannot be written to ({reason}). Choose another --out.", out) from None


def make_tokenizer(recipe: Recipe, files: Files, out: Path) -> None:
    """Train the run's tokenizer, from the training files alone, unless it is there."""
    if not (out / "tokenizer.json").is_file():
        Tokenizer.train(files.tokenizer_lines(), recipe.tokenizer).save(out)


def read_corpus(
    recipe: Recipe, files: Files, tokenizer: Tokenizer, out: Path, processes: Processes
) -> Corpus:
    """Both parts as batches."""
    if files.task == "translate":
        return read_pair_corpus(recipe, files, tokenizer, processes)
    processes.first_does(lambda: write_tokens(recipe, files, tokenizer, out / TOKENS))
    return read_text_corpus(recipe, files, tokenizer, out / TOKENS, processes)


def read_pair_corpus(
    recipe: Recipe, files: Files, tokenizer: Tokenizer, processes: Processes
) -> Corpus:
    config = recipe.train
    train_pairs, valid_pairs = files.pairs("train"), list(files.pairs("valid"))
    if not valid_pairs and config.valid_share:
        total = sum(1 for _ in files.pairs("train"))
        kept = total - max(1, int(total * config.valid_share))
        train_pairs = islice(files.pairs("train"), kept)
        valid_pairs = list(islice(files.pairs("train"), kept, None))
    settings = PairSettings(
        max_len=recipe.model.max_len,
        batch_tokens=max(1, config.batch_tokens // config.accumulate),
        seed=config.seed,
        bpe_dropout=config.bpe_dropout,
        skip_limit=config.skip_limit,
    )
    plain = PairSettings(
        max_len=recipe.model.max_len, batch_tokens=config.batch_tokens, skip_limit=1
    )
    valid = PairData(valid_pairs, tokenizer, plain, processes) if valid_pairs else None
    return Corpus(PairData(train_pairs, tokenizer, settings, processes), valid, valid_pairs)


def write_tokens(recipe: Recipe, files: Files, tokenizer: Tokenizer, folder: Path) -> None:
    """Encode both parts of a text corpus; of one without validation files a part is held out."""
    config = recipe.train
    texts, valid_texts = files.texts("train", config.documents), []
    if files.valid:
        valid_texts = files.texts("valid", config.documents)
    elif config.valid_share:
        texts, valid_texts = hold_out(texts, config.valid_share)
    TokenFile.write(folder / "train", texts, tokenizer)
    if valid_texts:
        TokenFile.write(folder / "valid", valid_texts, tokenizer)


def read_text_corpus(
    recipe: Recipe, files: Files, tokenizer: Tokenizer, folder: Path, processes: Processes
) -> Corpus:
    config = recipe.train
    assert files.task != "translate", "pairs are read elsewhere"
    settings = TextSettings(
        sample_len=config.sample_len or recipe.model.max_len,
        batch_tokens=max(1, config.batch_tokens // config.accumulate),
        objective=files.task,
        documents=config.documents,
        mask_share=config.mask_share,
        seed=config.seed,
    )
    has_valid = bool(files.valid or config.valid_share)
    train, valid = (
        TextData(TokenFile.open(folder / part), tokenizer, settings, processes) if part else None
        for part in ("train", "valid" if has_valid else "")
    )
    assert train is not None, "there is always text to train on"
    return Corpus(train, valid, [])


def hold_out(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    """The last part of the text: of its documents, or of the characters of a single one."""
    if len(texts) == 1:
        cut = int(len(texts[0]) * (1 - share))
        return [texts[0][:cut]], [texts[0][cut:]]
    cut = max(1, int(len(texts) * share))
    return texts[:-cut], texts[-cut:]


def build_trainer(
    recipe: Recipe,
    files: Files,
    out: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    translate: MakeTranslate | None,
    processes: Processes,
) -> Trainer:
    config = recipe.train
    model = fresh_model(recipe, files, tokenizer).to(processes.device)
    scorer = None
    if translate is not None and corpus.valid_pairs and config.translate_lines:
        scorer = translate(corpus.valid_pairs[: config.translate_lines], tokenizer)
    checkpoints = Checkpoints(out, config.save_every, config.average)
    metrics = Metrics(out, config.tensorboard)
    return Trainer(
        model, config, corpus.train, corpus.valid, checkpoints, metrics, scorer, processes
    )


def fresh_model(recipe: Recipe, files: Files, tokenizer: Tokenizer) -> Model:
    """The recipe's model, of the kind that the task needs and with the tokenizer's vocabulary."""
    kinds = {"translate": "encoder-decoder", "lm": "decoder", "mlm": "encoder"}
    changes = {"vocab_size": tokenizer.vocab_size, "kind": kinds[files.task]}
    return build_model(recipe.model.with_changes(changes), recipe.train.seed)


def finish(
    trainer: Trainer, files: Files, out: Path, corpus: Corpus, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Put the mean of the last checkpoints into the folder as its model, with its scores."""
    state, processes = trainer.state, trainer.processes
    model = build_model(trainer.model.config).to(processes.device)
    copy_state(trainer.checkpoints.mean_weights(state.step), model, out)
    scores: dict[str, Any] = {
        "steps": state.step,
        "epochs": state.epoch,
        "seconds": round(state.seconds, 1),
        "tokens": state.tokens,
    }
    if corpus.valid is not None:
        loss_of: LossOf = partial(batch_loss, model)
        scores["valid"] = validate(model, loss_of, corpus.valid, processes)
        if trainer.translate is not None and processes.is_first:
            scores["valid"] |= trainer.translate(model)
    folder = Checkpoint(model.eval(), tokenizer, files.task, scores)
    processes.first_does(lambda: save_folder(out, folder))
    if processes.is_first:
        shutil.rmtree(out / TOKENS, ignore_errors=True)  # the run is over: nothing reads them again
    return scores
