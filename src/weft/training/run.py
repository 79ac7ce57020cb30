"""`weft.train(recipe)`: a recipe, text files and a folder -> a trained model in that folder.

    files -> tokenizer -> token ids -> batches -> training loop -> OUT

Calling it again resumes an interrupted run, and returns the scores of a finished one. Everything
that determines the result is written to OUT/run.json before the run starts. `weft train` and
`weft demo` call `run_training` directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.atomic import (
    move_files,
    temporary_folder,
)
from weft.checkpoint.disk_space import Report, check_space, folder_bytes, no_report
from weft.checkpoint.examples import ExampleInput
from weft.checkpoint.folder_files import (
    MODEL_FILES,
    RUN_FILE,
    SCORES_FILE,
)
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.run_files import KINDS, read_run
from weft.checkpoint.tensor_source import unique_state
from weft.checkpoint.weft_folder import Checkpoint, write_folder
from weft.core.config import read_settings
from weft.core.device import choose_device
from weft.core.errors import UsageError
from weft.models.build import AnyModel, build_model, empty_model
from weft.models.config import ModelConfig
from weft.text.languages import language_pair, languages_of_files
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_names import TOKENIZER_FILE
from weft.training.checkpointing import RunCheckpoints
from weft.training.data.files import Pair, TrainingFiles
from weft.training.data.pairs import PairData, PairDataConfig
from weft.training.data.texts import TextData, TextDataConfig
from weft.training.data.tokens import TokenFile
from weft.training.delivery import (
    choose_weights,
    delivery_candidates,
    describe_delivery,
    is_of_earlier_version,
)
from weft.training.distributed import DistributedContext, init_distributed
from weft.training.example_inputs import pair_examples, text_examples
from weft.training.loop import Data, ProgressCallback, ScoreTranslations, Trainer
from weft.training.metrics_log import MetricsLog
from weft.training.model_card import model_card
from weft.training.observer import RunObserver, Stage, no_stage
from weft.training.recipe import DataConfig, Recipe
from weft.training.run_opening import TOKENS, is_delivered, open_run_folder, remove_tokens
from weft.training.run_plan import (
    Invocation,
    continued_recipe,
    follow_changes,
    plan_run,
    write_recipe,
)
from weft.training.run_record import CHANGES, num_changes, save_intervals, stored_recipe
from weft.training.signals import stop_on_signals
from weft.training.threads import threads_of_run
from weft.training.time_budget import TimeBudget

log = logging.getLogger(__name__)

MakeScorer = Callable[[list[Pair], Tokenizer], ScoreTranslations]
"""Builds the scorer of validation translations. The caller provides it, as it needs an engine."""


@dataclass(frozen=True)
class TrainingCorpus:
    """Training and validation data of a run, the validation pairs as text, and examples of it."""

    train: Data
    valid: Data | None
    valid_pairs: list[Pair]
    examples: tuple[ExampleInput, ...] = ()


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    watch: ProgressCallback = lambda progress: None,
    device: str = "auto",
) -> dict[str, Any]:
    """Train the model of a recipe, or resume its training, and return its scores.

    The [data] section names the files and the folder; paths in a recipe file are relative to it.
    """
    folder = Path()
    if isinstance(recipe, str | Path):
        folder = Path(recipe).parent
        recipe = Recipe.from_dict(read_settings(recipe), where=str(recipe))
    elif not isinstance(recipe, Recipe):
        recipe = Recipe.from_dict(recipe)
    target = out or (recipe.data.out and folder / recipe.data.out)
    if not target:
        raise UsageError(
            "the recipe's data.out is empty. Set it to the model folder, or pass out=."
        )
    files = training_files(recipe.data, folder)
    return run_training(recipe, files, Path(target), watch, device=choose_device(device))


def training_files(data: DataConfig, folder: Path = Path()) -> TrainingFiles:
    """The files of a [data] section, relative to `folder`."""
    files = choose_training_files(data, folder)
    files.check_regular()
    return files


def choose_training_files(data: DataConfig, folder: Path) -> TrainingFiles:
    """Those of the one of pairs, tsv and text that is set."""

    def paths(names: tuple[str, ...]) -> tuple[Path, ...]:
        return tuple(folder / name for name in names)

    sources = {"pairs": data.pairs, "tsv": data.tsv, "text": data.text}
    names = [name for name, value in sources.items() if value]
    if len(names) != 1:
        sources_set = " and ".join(names) or "none of pairs, tsv and text"
        raise UsageError(f"{sources_set} given: a run needs exactly one of the three.")
    languages = language_pair(data.languages) if data.languages else None
    if data.text:
        if languages is not None:
            raise UsageError(
                f"languages are {' and '.join(languages)}, but text files train no translation "
                "model. Leave them out."
            )
        return TrainingFiles(data.objective, paths(data.text), paths(data.valid))
    if data.tsv:
        files = (paths((data.tsv,)), paths(data.valid), data.columns)
        return TrainingFiles("translate", *files, languages)
    languages = languages or languages_of_files(paths(data.pairs))
    return TrainingFiles("translate", paths(data.pairs), paths(data.valid), languages=languages)


def run_training(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    watch: ProgressCallback = lambda progress: None,
    make_scorer: MakeScorer | None = None,
    device: torch.device | str = "cpu",
    report: Report = no_report,
    stage: Stage = no_stage,
    invocation: Invocation | None = None,
) -> dict[str, Any]:
    """Train the model in `out`, or resume its training, and return its scores. `watch`, `report`
    and `stage` are those of a RunObserver."""
    invocation = invocation or Invocation()
    check_best_by(recipe, files, make_scorer)
    observer = RunObserver(watch, report, stage)
    with init_distributed(torch.device(device)) as distributed, ExitStack() as lock:
        recipe = continued_recipe(recipe, files, out)
        distributed.on_rank_zero(
            lambda: open_run_folder(recipe, files, out, lock, observer, invocation.command)
        )
        # a separate function: DDP must be garbage before the process group is destroyed
        return train_in_process(distributed, recipe, files, out, observer, make_scorer, invocation)


def train_in_process(
    distributed: DistributedContext,
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    observer: RunObserver,
    make_scorer: MakeScorer | None,
    invocation: Invocation,
) -> dict[str, Any]:
    """The run of one process."""
    if is_delivered(out):
        log.info("run=finished out=%s", out)
        return read_consistently(out, MODEL_FILES, lambda model: read_settings(model / SCORES_FILE))
    report = observer.report
    distributed.on_rank_zero(lambda: train_tokenizer(recipe, files, out, observer))
    tokenizer = Tokenizer.load(out)
    distributed.on_rank_zero(lambda: check_run_space(recipe, files, tokenizer, out, report))
    corpus = read_corpus(recipe, files, tokenizer, out, distributed, observer)

    def make_trainer() -> Trainer:
        return build_trainer(
            recipe, files, out, corpus, tokenizer, make_scorer, distributed, invocation
        )

    with threads_of_run(out / RUN_FILE):
        recipe = plan_run(recipe, out, invocation, observer, make_trainer, corpus.valid)
        trainer = make_trainer()
        if trainer.resume():
            follow_changes(trainer, out)
            if distributed.is_rank_zero:
                report(f"{out}: resuming from step {trainer.state.step}")
        with stop_on_signals() as stop:
            trainer.run(observer.watch, stop)
        return save_final_model(trainer, files, out, corpus, tokenizer)


def check_best_by(recipe: Recipe, files: TrainingFiles, make_scorer: MakeScorer | None) -> None:
    """A UsageError if train.best_by is a score of translations, and there are none."""
    metric = recipe.train.best_by
    if metric == "loss":
        return
    if files.task != "translate" or not (files.valid or recipe.train.valid_share):
        problem = "only a translation run with validation data is scored by it"
    elif make_scorer is None:
        problem = "weft.train translates nothing during training; the command `weft train` does"
    else:
        return
    raise UsageError(f"train.best_by is {metric}: {problem}. Set train.best_by = loss.")


def train_tokenizer(recipe: Recipe, files: TrainingFiles, out: Path, observer: RunObserver) -> None:
    """Train the tokenizer of the run on its training files, unless it exists."""
    if not (out / TOKENIZER_FILE).is_file():
        with temporary_folder(out / "tokenizer") as folder:
            lines = observer.counted(files.tokenizer_lines(), "training the tokenizer")
            Tokenizer.train(lines, recipe.tokenizer).save(folder)
            move_files(folder, out, last=TOKENIZER_FILE)


def read_corpus(
    recipe: Recipe,
    files: TrainingFiles,
    tokenizer: Tokenizer,
    out: Path,
    distributed: DistributedContext,
    observer: RunObserver,
) -> TrainingCorpus:
    """Training and validation data as batches."""
    if files.task == "translate":
        return read_pair_corpus(recipe, files, tokenizer, distributed, observer)
    distributed.on_rank_zero(lambda: write_tokens(recipe, files, tokenizer, out / TOKENS, observer))
    return read_text_corpus(recipe, files, tokenizer, out / TOKENS, distributed)


def read_pair_corpus(
    recipe: Recipe,
    files: TrainingFiles,
    tokenizer: Tokenizer,
    distributed: DistributedContext,
    observer: RunObserver,
) -> TrainingCorpus:
    config, max_len = recipe.train, recipe.model.max_len
    train_pairs, valid_pairs = files.pairs("train"), list(files.pairs("valid"))
    if not valid_pairs and config.valid_share:
        num_pairs = sum(1 for _ in files.pairs("train"))
        num_train = num_pairs - max(1, int(num_pairs * config.valid_share))
        train_pairs = islice(files.pairs("train"), num_train)
        valid_pairs = list(islice(files.pairs("train"), num_train, None))
    train_config = PairDataConfig(
        max_len=max_len,
        batch_tokens=max(1, config.batch_tokens // config.accumulate),
        seed=config.seed,
        bpe_dropout=config.bpe_dropout,
        skip_limit=config.skip_limit,
    )
    valid_config = PairDataConfig(max_len, config.batch_tokens, skip_limit=1)
    valid = PairData(valid_pairs, tokenizer, valid_config, distributed) if valid_pairs else None
    train_data = PairData(train_pairs, tokenizer, train_config, distributed, observer.stage)
    return TrainingCorpus(train_data, valid, valid_pairs, pair_examples(valid_pairs))


def write_tokens(
    recipe: Recipe,
    files: TrainingFiles,
    tokenizer: Tokenizer,
    folder: Path,
    observer: RunObserver,
) -> None:
    """Encode training and validation text; without validation files, hold out `valid_share`."""
    config = recipe.train
    texts, valid_texts = files.texts("train", config.documents), []
    if files.valid:
        valid_texts = files.texts("valid", config.documents)
    elif config.valid_share:
        texts, valid_texts = split_validation(texts, config.valid_share)
    counted = observer.counted(texts, "encoding the text", len(texts))
    TokenFile.write(folder / "train", counted, tokenizer)
    if valid_texts:
        TokenFile.write(folder / "valid", valid_texts, tokenizer)


def has_tokens(recipe: Recipe, files: TrainingFiles, folder: Path) -> bool:
    """Whether `write_tokens` has nothing left to write."""
    has_valid = bool(files.valid or recipe.train.valid_share)
    return (folder / "train").is_dir() and (not has_valid or (folder / "valid").is_dir())


def read_text_corpus(
    recipe: Recipe,
    files: TrainingFiles,
    tokenizer: Tokenizer,
    folder: Path,
    distributed: DistributedContext,
) -> TrainingCorpus:
    config = recipe.train
    assert files.task != "translate", "pairs are read by read_pair_corpus"
    data_config = TextDataConfig(
        sample_len=config.sample_len or recipe.model.max_len,
        batch_tokens=max(1, config.batch_tokens // config.accumulate),
        objective=files.task,
        documents=config.documents,
        mask_share=config.mask_share,
        seed=config.seed,
    )

    def read(part: str) -> TextData:
        return TextData(TokenFile.open(folder / part), tokenizer, data_config, distributed)

    if not (files.valid or config.valid_share):
        return TrainingCorpus(read("train"), None, [])
    examples = text_examples(TokenFile.open(folder / "valid"), tokenizer)
    return TrainingCorpus(read("train"), read("valid"), [], examples)


def split_validation(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    """(training, validation): the last `share` of the documents, or of the text of a single one."""
    if len(texts) == 1:
        cut = int(len(texts[0]) * (1 - share))
        return [texts[0][:cut]], [texts[0][cut:]]
    num_valid = max(1, int(len(texts) * share))
    return texts[:-num_valid], texts[-num_valid:]


def build_trainer(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    corpus: TrainingCorpus,
    tokenizer: Tokenizer,
    make_scorer: MakeScorer | None,
    distributed: DistributedContext,
    invocation: Invocation,
) -> Trainer:
    config, now = recipe.train, invocation.now
    budget = None
    if config.minutes is not None:
        budget = TimeBudget(60 * config.minutes, invocation.began, now)
    model = init_model(recipe, files, tokenizer).to(distributed.device)
    scorer = None
    if make_scorer is not None and corpus.valid_pairs and config.translate_lines:
        scorer = make_scorer(corpus.valid_pairs[: config.translate_lines], tokenizer)
    checkpoints = run_checkpoints(recipe, files, out)
    metrics = MetricsLog(out, config.tensorboard)
    return Trainer(
        *(model, config, corpus.train, corpus.valid, checkpoints, metrics, scorer, distributed),
        now=now,
        budget=budget,
    )


def run_checkpoints(recipe: Recipe, files: TrainingFiles, out: Path) -> RunCheckpoints:
    """The checkpoints of a run, which is open."""
    config = recipe.train
    has_valid = bool(files.valid or config.valid_share)
    intervals = save_intervals(out, config.save_every)
    return RunCheckpoints(out, intervals, config.average, has_valid)


def check_run_space(
    recipe: Recipe, files: TrainingFiles, tokenizer: Tokenizer, out: Path, report: Report
) -> None:
    """A DataError unless token ids, checkpoints and model of the run fit on the disk."""
    config = recipe.train
    state = unique_state(empty_model(model_config(recipe, files, tokenizer)))
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    checkpoints = run_checkpoints(recipe, files, out)
    num_kept, num_bytes = checkpoints.peak_bytes(weight_bytes, config.steps)
    num_bytes = max(0, num_bytes - folder_bytes(checkpoints.folder))
    what = f"{num_kept} checkpoints and the model"
    if files.task != "translate" and not has_tokens(recipe, files, out / TOKENS):
        num_bytes += TokenFile.max_bytes(files.train + files.valid, tokenizer)
        what = f"token ids, {what}"
    check_space(out, num_bytes, report, what)


def init_model(recipe: Recipe, files: TrainingFiles, tokenizer: Tokenizer) -> AnyModel:
    """The recipe's model with random weights."""
    return build_model(model_config(recipe, files, tokenizer), recipe.train.seed)


def model_config(recipe: Recipe, files: TrainingFiles, tokenizer: Tokenizer) -> ModelConfig:
    """The settings of the recipe's model, with the kind of the task and the tokenizer's vocabulary
    size."""
    changes = {"vocab_size": tokenizer.vocab_size, "kind": KINDS[files.task]}
    return recipe.model.with_changes(changes)


def save_final_model(
    trainer: Trainer, files: TrainingFiles, out: Path, corpus: TrainingCorpus, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Save the best weights of the run as the model of the folder, with their scores."""
    state, metric = trainer.state, trainer.config.best_by
    delivery = choose_weights(trainer, delivery_candidates(trainer))
    scores: dict[str, Any] = {
        "steps": state.step,
        "epochs": state.epoch,
        "seconds": round(state.seconds, 1),
        "tokens": state.tokens,
    }
    if changes := num_changes(out):
        scores[CHANGES] = changes
    if corpus.valid is not None:
        scores["valid"] = delivery.chosen.scores
    if not is_of_earlier_version(trainer):
        scores["delivered"] = delivery.to_dict(metric)
        log.info("out=%s delivered='%s'", out, describe_delivery(scores["delivered"]))
        signatures = getattr(trainer.score_translations, "signatures", {})
        if signatures:
            num_lines = min(len(corpus.valid_pairs), trainer.config.translate_lines)
            scores |= {"signatures": signatures, "translated_lines": num_lines}
    model = delivery.model.eval()
    checkpoint = Checkpoint(
        *(model, tokenizer, files.task, scores),
        languages=files.languages,
        examples=corpus.examples,
    )
    trainer.distributed.on_rank_zero(lambda: finish_run(trainer, out, checkpoint))
    return scores


def finish_run(trainer: Trainer, out: Path, checkpoint: Checkpoint) -> None:
    """Write the model, after which the run is finished and nothing else is written."""
    trainer.metrics.sync()
    card = None
    if "delivered" in checkpoint.scores:
        num_weights = sum(t.numel() for t in unique_state(checkpoint.model).values())
        card = model_card(out.resolve(), read_run(out), checkpoint.scores, num_weights)
    write_recipe(out, stored_recipe(out), trainer.state.replans)
    write_folder(out, replace(checkpoint, card=card))
    remove_tokens(out)
