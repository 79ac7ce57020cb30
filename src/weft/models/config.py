"""`ModelConfig`: all settings of a model. Each component is selected by its `kind`.

weft.ModelConfig(kind="decoder", attention={"kind": "gqa"}, position={"kind": "rotary"})
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem, shown
from weft.nn.attention.config import AttentionConfig, warn_once
from weft.nn.config import EmbeddingConfig, FeedForwardConfig, LMHeadConfig, MLPConfig, NormConfig
from weft.nn.positions.config import (
    PositionConfig,
    PositionShape,
    RotaryConfig,
    SinusoidalConfig,
)

MAX_LAYERS = 2_000
"""More than any model has: a file with a larger number is corrupt, and building it never ends."""


MAX_SIZE = 2**31 - 1
"""More than any size of a model; with larger ones torch cannot describe its tensors."""


class ModelConfig(Config):
    """Everything needed to build a model. Defaults: the Transformer of Vaswani 2017, small."""

    kind: Literal["encoder-decoder", "decoder", "encoder"] = "encoder-decoder"
    """Set by the task of a training run: pairs train an encoder-decoder, text a decoder (lm) or an
    encoder (mlm)."""
    vocab_size: int = Field(8000, ge=1)
    """Rows of the embedding matrix. A training run sets it to the size of its tokenizer."""
    source_vocab_size: int | None = Field(None, ge=1)
    """Size of a separate source vocabulary. None: source and target share one."""
    width: int = Field(256, ge=1)
    """Size of a token's vector (hidden size, model dimension D)."""
    num_layers: int = Field(4, ge=1, le=MAX_LAYERS)
    """Number of blocks, each with attention and a feed-forward layer; in an encoder-decoder of each
    side."""
    encoder_layers: int | None = Field(None, ge=1, le=MAX_LAYERS)
    """Number of blocks of the encoder. None: num_layers, as in the decoder."""
    max_len: int = Field(1024, ge=1)
    """Maximum tokens of a sequence; learned positions have a table of this length."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout probability of the outputs of embeddings and sub-layers."""
    attention: AttentionConfig = AttentionConfig()
    """Heads, kernel and pattern of the attention layers."""
    position: PositionConfig = SinusoidalConfig()
    """How the order of the tokens is encoded: RoPE, ALiBi, sinusoids and others."""
    local_position: RotaryConfig | None = None
    """Rotary positions of the layers with a window (attention.pattern), if they differ (Gemma 3:
    base 10000 instead of 1000000). None: `position`, as in the other layers."""
    feedforward: FeedForwardConfig = MLPConfig()
    """The feed-forward layer of each block."""
    dense_layers: int = Field(0, ge=0)
    """First layers whose feed-forward is `dense_feedforward` (DeepSeek: 1 to 3 before the experts
    begin)."""
    dense_feedforward: FeedForwardConfig = MLPConfig()
    """The feed-forward layer of the first `dense_layers` blocks, where the others have experts."""
    norm: NormConfig = NormConfig()
    """The normalization of the blocks and, unless final_norm is set, after the last one."""
    final_norm: bool | None = None
    """A norm after the last layer. None: yes unless every layer already ends in one (placement
    after)."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """How token ids become vectors, and which matrices source, target and output share."""
    head: LMHeadConfig = LMHeadConfig()
    """The last layer, from hidden states to logits over the vocabulary."""
    pooler: bool = False
    """A dense layer with tanh on the first token's vector (BERT's sentence vector). Encoders
    only."""
    init_std: float | None = Field(None, gt=0)
    """Standard deviation of fresh weights. None: Xavier for matrices, width ** -0.5 for words."""

    @property
    def head_size(self) -> int:
        return self.attention.size_of_head(self.width)

    @property
    def has_final_norm(self) -> bool:
        return self.norm.placement != "after" if self.final_norm is None else self.final_norm

    @property
    def max_cached_len(self) -> int:
        """Longest sequence that can run with a KV cache: max_len, or the rows of a shorter table of
        learned positions, or the original length of dynamic RoPE scaling, beyond which every new
        token would change the cached keys."""
        positions = [p for p in (self.position, self.local_position) if p is not None]
        limits = [position.max_cached_len for position in positions]
        return min([self.max_len, *(limit for limit in limits if limit is not None)])

    def layers_of(self, stack: Literal["encoder", "decoder"]) -> int:
        if stack == "encoder" and self.encoder_layers is not None:
            return self.encoder_layers
        return self.num_layers

    def vocab_size_of(self, stack: Literal["encoder", "decoder"]) -> int:
        is_source = stack == "encoder" and self.kind == "encoder-decoder"
        return (self.source_vocab_size if is_source else None) or self.vocab_size

    def feedforward_of(self, layer: int) -> FeedForwardConfig:
        return self.dense_feedforward if layer < self.dense_layers else self.feedforward

    def position_shape(self, stack: Literal["encoder", "decoder"]) -> PositionShape:
        """Sizes that the position encoding of a stack depends on."""
        return PositionShape(
            width=self.width,
            num_heads=self.attention.num_heads,
            head_size=self.attention.query_size(self.width),
            rotary_size=self.attention.rotary_size(self.width),
            num_layers=self.layers_of(stack),
            max_len=self.max_len,
            is_causal=stack == "decoder",
        )

    def cross_checks(self) -> Iterable[Problem]:
        yield from check_sizes(self.to_dict())
        yield from check_heads(self)
        yield from check_vocabularies(self)
        yield from check_positions(self)
        yield from check_blocks(self)
        if self.pooler and self.kind != "encoder":
            yield Problem(
                f"pooler is True but kind is {self.kind}: only an encoder has one vector for a "
                "whole text. Leave it out.",
                ("pooler", "kind"),
            )
        if self.dense_layers > self.num_layers:
            yield Problem(
                f"dense_layers is {self.dense_layers} but num_layers is {self.num_layers}: "
                f"no layer would have experts. Use at most {self.num_layers}.",
                ("dense_layers", "num_layers"),
            )


def check_sizes(values: dict[str, Any], prefix: str = "") -> Iterable[Problem]:
    """No integer may be larger than MAX_SIZE."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from check_sizes(value, f"{prefix}{name}.")
        elif isinstance(value, int) and value > MAX_SIZE:
            text = f"{prefix}{name} is {shown(value)}: it must be at most {MAX_SIZE:,}."
            yield Problem(f"{text} Change {prefix}{name}.", (prefix + name,))


def check_heads(config: ModelConfig) -> Iterable[Problem]:
    """Heads must divide the width, unless a head size is given."""
    width, heads = config.width, config.attention.num_heads
    if config.attention.head_size is None and width % heads:
        allowed = ", ".join(str(n) for n in range(1, min(width, 64) + 1) if width % n == 0)
        yield Problem(
            f"width is {width} but attention.num_heads is {heads}: heads must divide the width. "
            f"Use one of {allowed} heads, or set attention.head_size.",
            ("width", "attention.num_heads"),
        )


def check_vocabularies(config: ModelConfig) -> Iterable[Problem]:
    """One tied table needs one vocabulary; a source vocabulary needs a source."""
    source = config.source_vocab_size
    if source is None:
        return
    if config.kind != "encoder-decoder":
        yield Problem(
            f"source_vocab_size is {source} but kind is {config.kind}: only an encoder-decoder has "
            "a source. Leave it out.",
            ("source_vocab_size", "kind"),
        )
    elif config.embedding.ties_source and source != config.vocab_size:
        yield Problem(
            f"source_vocab_size is {source}, vocab_size is {config.vocab_size} and embedding.tied "
            f"is {config.embedding.tied}: one table has one size. Set embedding.tied = output, or "
            "leave source_vocab_size out.",
            ("source_vocab_size", "vocab_size", "embedding.tied"),
        )


def check_positions(config: ModelConfig) -> Iterable[Problem]:
    """Both positions, where they are rotary and the size of a head is known."""
    local, attention = config.local_position, config.attention
    if local is not None and attention.pattern.kind == "full":
        warn_once(
            "local_position has no effect: attention.pattern.kind=full lets all layers see all"
        )
    if attention.head_size is None and config.width % attention.num_heads:
        return
    for name, position in (("position", config.position), ("local_position", local)):
        if isinstance(position, RotaryConfig):
            yield from check_pairs(config, name, position)


def check_pairs(config: ModelConfig, where: str, position: RotaryConfig) -> Iterable[Problem]:
    """Rotary positions rotate pairs: the rotated part of a head must be even."""
    attention = config.attention
    size = attention.rotary_size(config.width)
    rotated, minimum = int(size * position.fraction), 4 if position.scaling.kind == "dynamic" else 2
    if rotated % 2 or rotated < minimum:
        name = "attention.latent.rope_size" if attention.kind == "mla" else "the head size"
        yield Problem(
            f"{where}.kind is rotary but it would rotate {rotated} numbers of each head ({name} is "
            f"{size}, {where}.fraction {position.fraction:g}): it rotates pairs, so that must be "
            f"even and at least {minimum}. Change width, attention.num_heads or "
            "attention.head_size.",
            (where, "width", "attention.num_heads", "attention.head_size"),
        )


def check_blocks(config: ModelConfig) -> Iterable[Problem]:
    """A block pattern must cover every token that may come."""
    pattern = config.attention.pattern
    if pattern.kind != "blocks" or not pattern.blocks:
        return
    covered = pattern.block_size * min(len(pattern.blocks), len(pattern.blocks[0]))
    if covered < config.max_len:
        yield Problem(
            f"attention.pattern.blocks covers {covered} tokens but max_len is {config.max_len}: "
            f"add rows and columns, or set max_len to at most {covered}.",
            ("attention.pattern.blocks", "attention.pattern.block_size", "max_len"),
        )
