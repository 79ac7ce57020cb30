"""`Recipe`: all settings of a training run, from a TOML file and `--set` overrides.

    [model] layers   [tokenizer] text to ids   [train] steps, loss, optimizer   [data] files

Keys are stored in run.json and compared on resume: they keep their spelling (`optimiser`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from weft.checkpoint.run_selection import Metric
from weft.core.config import Config
from weft.core.errors import Problem, shown
from weft.models.config import ModelConfig
from weft.text.tokenizer_training import TokenizerConfig
from weft.training.optimizer import OptimizerConfig, ScheduleConfig
from weft.training.time_budget import MIN_MINUTES


class TrainConfig(Config):
    """How a model is trained."""

    steps: int = Field(4000, ge=1)
    """Updates of the weights; early stopping may end the run before."""
    minutes: float | None = Field(None, ge=MIN_MINUTES)
    """Duration of the run in minutes, from reading the files to writing the model: `steps` is
    planned after a probe of some seconds, and again with each checkpoint of save_every steps.
    `--time 10m` sets it. None: `steps` alone counts."""
    replans: tuple[tuple[int, int], ...] = ()
    """Plans of a run with `minutes`, as [step, steps]: after `step` the run has `steps` steps in
    all. Another run with the same plans has the same learning rates and the same bits. Empty:
    `steps` alone counts."""
    batch_tokens: int = Field(4096, ge=1)
    """Tokens of an update (of the target, for pairs), over all processes."""
    accumulate: int = Field(1, ge=1)
    """Gradient accumulation: batches per update. Less memory, the same result."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass of the target that is spread over the vocabulary (Szegedy 2016)."""
    rdrop: float = Field(0.0, ge=0)
    """R-Drop: weight of the KL divergence of two passes with different dropout. 0: one pass."""
    rdrop_from: int = Field(0, ge=0)
    """Steps without R-Drop at the start, where its second pass costs time and gains little. 0: from
    the first step."""
    bpe_dropout: float = Field(0.0, ge=0, lt=1)
    """Probability that a BPE merge is left out, drawn for each epoch (Provilkov 2020)."""
    mask_share: float = Field(0.15, gt=0, lt=1)
    """mlm: fraction of tokens to predict (Devlin 2019)."""
    sample_len: int | None = Field(None, ge=2)
    """lm, mlm: tokens in a sample. None: the model's max_len."""
    documents: Literal["line", "file"] = "line"
    """lm, mlm: a document is a line, or a whole file whose lines follow each other."""
    optimiser: OptimizerConfig = OptimizerConfig()
    """How the weights are updated from their gradients."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How the learning rate rises and falls from the first step to the last."""
    evaluate_every: int = Field(500, ge=1)
    """Steps between evaluations on the validation data."""
    save_every: int = Field(500, ge=1)
    """Steps between regular checkpoints: a killed run repeats at most so many, and averaging reads
    them."""
    save_minutes: float | None = Field(5.0, gt=0)
    """Minutes after which a checkpoint is saved in any case, so that a kill loses no more work. It
    has no influence on the result: such checkpoints are not averaged and not evaluated. None: only
    every save_every steps."""
    average: int = Field(1, ge=1)
    """Checkpoint averaging (Vaswani 2017): the mean of this many last regular checkpoints is
    delivered if it is better than the best checkpoint by best_by, or if there is no validation
    data. 1: no averaging."""
    best_by: Metric = "loss"
    """The validation score that selects the checkpoint to deliver and that early stopping waits
    for: loss, or the BLEU or chrF of the translated validation lines."""
    patience: int | None = Field(None, ge=1)
    """Early stopping: evaluations without a better score, by best_by. None: no early stopping."""
    valid_share: float = Field(0.0, ge=0, lt=1)
    """Without validation files: fraction at the end of the data that is held out. 0: none."""
    translate_lines: int = Field(200, ge=0)
    """Validation lines that are translated and scored at each evaluation. 0: none."""
    skip_limit: float = Field(0.1, ge=0, le=1)
    """Fraction of lines that may be empty or truncated; with more the run is refused."""
    shard: bool = False
    """Shard weights and optimizer state over processes (FSDP2); false: replicate them (DDP)."""
    tensorboard: bool = False
    """Also write all curves of metrics.jsonl into OUT/tensorboard. Needs the package
    tensorboard."""
    seed: int = Field(1, ge=0)
    """Random seed of the initial weights, the order of the batches and dropout. Equal seeds give
    equal bits."""

    def contradictions(self) -> Iterable[str]:
        """Settings that are allowed but defeat each other; the run goes on."""
        warmup, last = self.schedule.warmup, f"train.steps is {self.steps}"
        if self.steps <= warmup:
            yield (
                f"{last} but train.schedule.warmup is {warmup}: the learning rate never reaches "
                "train.optimiser.lr. Use fewer steps of warmup, or more steps"
            )
        elif self.average > 1 and self.steps - (self.average - 1) * self.save_every <= warmup:
            yield (
                f"train.average is {self.average} and train.save_every is {self.save_every} but "
                f"{last}: the mean contains weights of the {warmup} steps of warmup. Use fewer "
                "checkpoints, or a smaller save_every"
            )
        if self.average > -(-self.steps // self.save_every):
            yield (
                f"train.average is {self.average} but {last} and train.save_every is "
                f"{self.save_every}: there are fewer checkpoints. Use a smaller save_every"
            )


class DataConfig(Config):
    """The files of a run and its folder, unless they are arguments of the command."""

    pairs: tuple[str, ...] = ()
    """A source and a target file with one sentence per line, plain or gzip: line n of one is the
    translation of line n of the other."""
    tsv: str = ""
    """A file with tabs between its columns; `columns` says which two are the pairs."""
    columns: tuple[int, int] = (1, 2)
    """Source and target column of the TSV file, counted from 1."""
    text: tuple[str, ...] = ()
    """Text files for a decoder or an encoder, plain or gzip."""
    objective: Literal["lm", "mlm"] = "lm"
    """For text files. lm: predict the next token (decoder). mlm: predict masked tokens
    (encoder)."""
    valid: tuple[str, ...] = ()
    """Validation files, in the same form as the training files. Empty: `train.valid_share` of those
    is held out."""
    languages: tuple[str, ...] = ()
    """Codes of source and target, as ["en", "de"]. Empty: by the suffixes of `pairs`."""
    out: str = ""
    """Folder of the run and of its model; `--out` on the command line."""


class Recipe(Config):
    """All settings of a run."""

    data: DataConfig = DataConfig()
    """The files of the run and its folder; arguments of the command replace them."""
    model: ModelConfig = ModelConfig()
    """Layers, width and attention of the model that is trained."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes token ids. Trained on the training files."""
    train: TrainConfig = TrainConfig()
    """Steps, loss, optimizer, evaluation and checkpoints."""

    def contradictions(self) -> Iterable[str]:
        """Settings that are allowed but defeat each other; the run goes on."""
        return self.train.contradictions()

    def cross_checks(self) -> Iterable[Problem]:
        train, tokenizer = self.train, self.tokenizer
        if train.bpe_dropout and tokenizer.kind != "bpe":
            yield Problem(
                f"train.bpe_dropout is {train.bpe_dropout} but tokenizer.kind is {tokenizer.kind}: "
                "BPE-dropout needs BPE. Set tokenizer.kind = bpe, or bpe_dropout = 0.",
                ("train.bpe_dropout", "tokenizer.kind"),
            )
        if train.minutes is not None and train.replans:
            yield Problem(
                f"train.minutes is {train.minutes:g} but train.replans has {len(train.replans)} "
                "plans: those of an earlier run. Leave out one of the two.",
                ("train.minutes", "train.replans"),
            )
        if any(steps < step for step, steps in train.replans) or [*train.replans] != sorted(
            train.replans
        ):
            yield Problem(
                f"train.replans is {shown(train.replans)}: no plan has fewer steps than were done, "
                "and the plans are in order. Copy them from recipe.json of the run.",
                ("train.replans",),
            )
        if train.rdrop_from and not train.rdrop:
            yield Problem(
                f"train.rdrop_from is {train.rdrop_from} but train.rdrop is 0: there is no "
                "R-Drop to delay. Set train.rdrop to a weight, such as 3, or leave rdrop_from out.",
                ("train.rdrop_from", "train.rdrop"),
            )
        if train.rdrop and train.rdrop_from >= train.steps:
            yield Problem(
                f"train.rdrop_from is {train.rdrop_from} but train.steps is {train.steps}: R-Drop "
                "would never start. Use a smaller rdrop_from, or set train.rdrop = 0.",
                ("train.rdrop_from", "train.steps"),
            )
        if train.best_by != "loss" and not train.translate_lines:
            yield Problem(
                f"train.best_by is {train.best_by} but train.translate_lines is 0: no translations "
                "are scored. Set train.translate_lines = 200, or best_by = loss.",
                ("train.best_by", "train.translate_lines"),
            )
        if train.best_by != "loss" and train.shard:
            yield Problem(
                f"train.shard is true but train.best_by is {train.best_by}: sharded models do not "
                "translate during training. Set train.best_by = loss, or train.shard = false.",
                ("train.shard", "train.best_by"),
            )
        if train.shard and train.optimiser.kind == "muon":
            yield Problem(
                "train.shard is true but train.optimiser.kind is muon: Muon needs unsharded "
                "matrices. Set train.optimiser.kind = adamw, or train.shard = false.",
                ("train.shard", "train.optimiser.kind"),
            )
        length = train.sample_len
        if length is not None and length > self.model.max_len:
            yield Problem(
                f"train.sample_len is {length} but model.max_len is {self.model.max_len}: a sample "
                "must fit into the model. Use a shorter sample_len or a larger max_len.",
                ("train.sample_len", "model.max_len"),
            )
