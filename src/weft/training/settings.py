"""`Recipe`: everything that decides what a run learns, from one TOML file and `--set` on top.

[model] the layers   [tokenizer] text to ids   [train] how it learns   [data] from what
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem
from weft.models.config import ModelConfig
from weft.text.settings import TokenizerConfig
from weft.training.optimiser import OptimiserConfig
from weft.training.schedule import ScheduleConfig


class TrainConfig(Config):
    """How a model learns."""

    steps: int = Field(4000, ge=1)
    """Updates of the weights; an early stop may end the run before."""
    batch_tokens: int = Field(4096, ge=1)
    """Tokens that an update learns from (of the target, for pairs), over all processes."""
    accumulate: int = Field(1, ge=1)
    """Parts of an update that are computed one after the other: less memory, the same result."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Share of the target's probability that is spread over the vocabulary."""
    rdrop: float = Field(0.0, ge=0)
    """R-Drop: weight of the agreement between two passes with other dropout. 0: one pass."""
    rdrop_from: int = Field(0, ge=0)
    """Steps before R-Drop begins. Its second pass slows the start down, where there is little yet
    to agree on; 0: from the first step."""
    bpe_dropout: float = Field(0.0, ge=0, lt=1)
    """Chance that a merge of the BPE is left out, drawn anew each epoch. 0: never."""
    mask_share: float = Field(0.15, gt=0, lt=1)
    """mlm: share of tokens to guess (Devlin 2019)."""
    sample_len: int | None = Field(None, ge=2)
    """lm, mlm: tokens in a sample. None: the model's max_len."""
    documents: Literal["line", "file"] = "line"
    """lm, mlm: a document is a line, or a whole file whose lines follow each other."""
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluate_every: int = Field(500, ge=1)
    """Steps between looks at the validation data."""
    save_every: int = Field(500, ge=1)
    """Steps between checkpoints."""
    average: int = Field(1, ge=1)
    """The model in the end: the mean of the last so many checkpoints. 1: the last one."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many evaluations without a lower validation loss. None: never early."""
    valid_share: float = Field(0.0, ge=0, lt=1)
    """Without validation files: share at the end of the data that is held out for it. 0: none."""
    translate_lines: int = Field(200, ge=0)
    """Lines of the validation data that are translated and scored at each evaluation. 0: none."""
    skip_limit: float = Field(0.1, ge=0, le=1)
    """Share of lines that may be empty or cut; with more the run is refused."""
    shard: bool = False
    """Split weights and optimiser among processes (FSDP2) instead of copying them (DDP)."""
    tensorboard: bool = False
    """Write the curves for TensorBoard too."""
    seed: int = Field(1, ge=0)


class DataConfig(Config):
    """The files of a run and its folder, where they are not arguments of the command."""

    pairs: tuple[str, ...] = ()
    """A source and a target file."""
    tsv: str = ""
    columns: tuple[int, int] = (1, 2)
    """Source and target column of the TSV file, counted from 1."""
    text: tuple[str, ...] = ()
    objective: Literal["lm", "mlm"] = "lm"
    valid: tuple[str, ...] = ()
    """Validation files, in the same form."""
    out: str = ""
    """The model folder."""


class Recipe(Config):
    """A whole run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    train: TrainConfig = TrainConfig()

    def cross_checks(self) -> Iterable[Problem]:
        train, tokenizer = self.train, self.tokenizer
        if train.bpe_dropout and tokenizer.kind != "bpe":
            yield Problem(
                f"train.bpe_dropout is {train.bpe_dropout} but tokenizer.kind is {tokenizer.kind}: "
                "only BPE has merges to leave out. Set tokenizer.kind = bpe, or bpe_dropout = 0.",
                ("train.bpe_dropout", "tokenizer.kind"),
            )
        if train.rdrop_from and not train.rdrop:
            yield Problem(
                f"train.rdrop_from is {train.rdrop_from} but train.rdrop is 0: nothing would begin "
                "there. Set train.rdrop to a weight, such as 3, or leave rdrop_from out.",
                ("train.rdrop_from", "train.rdrop"),
            )
        if train.rdrop and train.rdrop_from >= train.steps:
            yield Problem(
                f"train.rdrop_from is {train.rdrop_from} but train.steps is {train.steps}: R-Drop "
                "would never begin. Let it begin earlier, or set train.rdrop = 0.",
                ("train.rdrop_from", "train.steps"),
            )
        if train.shard and train.optimiser.kind == "muon":
            yield Problem(
                "train.shard is true but train.optimiser.kind is muon: Muon's step needs whole "
                "matrices. Set train.optimiser.kind = adamw, or train.shard = false.",
                ("train.shard", "train.optimiser.kind"),
            )
        length = train.sample_len
        if length is not None and length > self.model.max_len:
            yield Problem(
                f"train.sample_len is {length} but model.max_len is {self.model.max_len}: a sample "
                "must fit the model. Make one shorter or the other longer.",
                ("train.sample_len", "model.max_len"),
            )
