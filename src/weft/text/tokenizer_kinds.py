r"""The kinds of tokenizer that Weft trains: character, word, BPE, unigram and byte.

Each kind is an entry of KINDS: a pre-tokenization pattern and a `learn` function from lines to a
model of the `tokenizers` library. A new kind is one function and one entry.

All kinds keep the text unchanged. A space stays a space and belongs to the word after it, and a
character outside the vocabulary is encoded as bytes, <0x00> to <0xFF> (byte fallback), so decoding
is concatenation and exact. Differs from SentencePiece, whose space marker U+2581 collides with the
same character in the text, and from GPT-2's byte alphabet, which shows a Chinese character as three
unrelated letters.

Runs are bounded ({1,32}): one line of a million letters becomes many short words, in training and
in use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

# digits stand alone: numbers are copied and compared digit by digit
SUBWORDS = (
    r" ?(?:(?!\p{Han})[\p{L}\p{M}]){1,32}|\p{Han}{1,32}|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,16}|\s{1,16}(?!\S)|\s{1,16}"
)
"""Letters with the space before them, Han runs, digits, punctuation, white space."""

UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
WORDS = (
    rf" ?(?:(?!{UNSPACED})[\p{{L}}\p{{M}}]){{1,64}}| ?\p{{N}}{{1,64}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]|[\p{L}\p{M}]|\s"
)
"""Whole words; in scripts that are written without spaces, each character is a word."""

BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))
MAX_PIECE_LEN = 16
RESERVED_SCORE = -1000.0
"""Unigram score of reserved tokens: in the table for their ids, never preferred to real pieces."""
FLOOR_STEP = 1e-4
"""Difference between the scores that the unigram trainer gives to required characters."""

ScoredPieces = list[tuple[str, float]]


@dataclass(frozen=True)
class TokenizerPlan:
    """The vocabulary to learn: `size` ids, of which the first are reserved."""

    reserved: tuple[str, ...]
    """Special tokens, then BYTE_NAMES if there is byte fallback."""
    size: int
    min_frequency: int
    unknown: str
    byte_fallback: bool

    @property
    def num_free(self) -> int:
        """Number of ids for learned pieces."""
        return max(0, self.size - len(self.reserved))

    def vocabulary(self, pieces: Iterable[str]) -> dict[str, int]:
        """Ids for the reserved tokens, then for the first `num_free` pieces."""
        reserved = set(self.reserved)
        names = [*self.reserved, *[p for p in pieces if p not in reserved][: self.num_free]]
        return {name: index for index, name in enumerate(names)}


@dataclass(frozen=True)
class TokenizerKind:
    """One entry of KINDS."""

    learn: Callable[[Iterable[str], TokenizerPlan], models.Model]
    """Lines (iterable more than once) -> a model whose ids begin with the plan's reserved
    tokens."""
    pattern: str = SUBWORDS
    """Pre-tokenization pattern; no token crosses a boundary."""
    byte_fallback: bool = True
    """Default of TokenizerConfig.byte_fallback."""


def learn_characters(lines: Iterable[str], plan: TokenizerPlan) -> models.Model:
    """One id for each Unicode code point; rare and unseen ones fall back to bytes or unknown."""
    return bpe_model(plan, alphabet(count_characters(lines), plan))


def learn_words(lines: Iterable[str], plan: TokenizerPlan) -> models.Model:
    """One id for each word with the space before it; other words are unknown (or bytes).

    A word after a space and the same word at the start of a line are two entries, which keeps
    decoding of known text exact.
    """
    tokenizer = Tokenizer(models.WordLevel())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    trainer = trainers.WordLevelTrainer(
        vocab_size=plan.num_free,
        min_frequency=plan.min_frequency,
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    ids = json.loads(tokenizer.to_str())["model"]["vocab"]
    words = sorted(ids, key=ids.__getitem__)
    if plan.byte_fallback:
        return bpe_model(plan, words, whole_words=True)
    return models.WordLevel(plan.vocabulary(words), unk_token=plan.unknown)


def learn_bpe(lines: Iterable[str], plan: TokenizerPlan) -> models.Model:
    """Byte-pair encoding (Sennrich 2016): start from characters, merge the most frequent pair.

    Differs from the paper: no end-of-word marker (the space before a word is part of it), and
    characters that are too rare for an id are encoded as bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SUBWORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=plan.num_free,
        min_frequency=plan.min_frequency,
        limit_alphabet=len(alphabet(count_characters(lines), plan)),
        max_token_length=MAX_PIECE_LEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return bpe_model(plan, pieces, [(left, right) for left, right in model["merges"]])


def learn_unigram(lines: Iterable[str], plan: TokenizerPlan) -> models.Model:
    """Unigram language model (Kudo 2018): start from many pieces, drop those whose removal costs
    the least likelihood.

    Differs from the library's result, which varies a little from run to run: scores are rounded,
    required characters share one score, and pieces are in a fixed order.
    """
    counts = count_characters(lines)
    known = set(alphabet(counts, plan))
    # the trainer keeps every character; those that byte fallback covers must not take ids
    trained = train_unigram(lines, plan, plan.num_free + len(counts) - len(known))
    pieces = [(piece, score) for piece, score in trained if known.issuperset(piece)]
    reserved = [(name, RESERVED_SCORE) for name in plan.reserved]
    return models.Unigram(
        reserved + best_pieces(canonical_order(pieces), plan.num_free),
        unk_id=plan.reserved.index(plan.unknown),
        byte_fallback=plan.byte_fallback,
    )


def learn_bytes(lines: Iterable[str], plan: TokenizerPlan) -> models.Model:
    """256 ids for the bytes of UTF-8; the lines are not read. The longest sequences, no unknown."""
    return bpe_model(plan, pieces=())


KINDS: dict[str, TokenizerKind] = {
    "character": TokenizerKind(learn_characters),
    "word": TokenizerKind(learn_words, pattern=WORDS, byte_fallback=False),
    "bpe": TokenizerKind(learn_bpe),
    "unigram": TokenizerKind(learn_unigram),
    "byte": TokenizerKind(learn_bytes),
}


def bpe_model(
    plan: TokenizerPlan,
    pieces: Iterable[str],
    merges: Sequence[tuple[str, str]] = (),
    whole_words: bool = False,
) -> models.BPE:
    """A BPE model with byte fallback. `whole_words`: a word in the vocabulary needs no merges."""
    return models.BPE(
        plan.vocabulary(pieces),
        list(merges),
        unk_token=plan.unknown,
        byte_fallback=plan.byte_fallback,
        ignore_merges=whole_words,
    )


def count_characters(lines: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return counts


def alphabet(counts: Counter[str], plan: TokenizerPlan) -> list[str]:
    """The characters that get an id, most frequent first.

    With byte fallback a character must occur `min_frequency` times, and a quarter of the free ids
    is left for longer pieces. Characters with equal counts are all included or all excluded, so
    that the choice does not depend on hash order.
    """
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    min_count = plan.min_frequency if plan.byte_fallback else 1
    ranked = [char for char in ranked if counts[char] >= min_count]
    max_chars = plan.num_free * 3 // 4 if plan.byte_fallback else plan.num_free
    if len(ranked) > max_chars:
        ranked = [char for char in ranked if counts[char] > counts[ranked[max_chars]]]
    return ranked


def train_unigram(lines: Iterable[str], plan: TokenizerPlan, size: int) -> ScoredPieces:
    """`size` pieces of the library's trainer with their scores, without its unknown token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SUBWORDS), "isolated")
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1,
        special_tokens=[plan.unknown],
        unk_token=plan.unknown,
        max_piece_length=MAX_PIECE_LEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(lines), trainer)
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in vocab if piece != plan.unknown]


def canonical_order(pieces: ScoredPieces) -> ScoredPieces:
    """The pieces with scores and order that do not depend on the trainer's hash order."""
    if not pieces:
        return []
    floor = min(score for _, score in pieces)
    ceiling = floor + FLOOR_STEP * sum(len(piece) == 1 for piece, _ in pieces)
    level = [(p, floor if len(p) == 1 and score <= ceiling else score) for p, score in pieces]
    return sorted(
        ((p, round(score, 6)) for p, score in level), key=lambda item: (-item[1], item[0])
    )


def best_pieces(pieces: ScoredPieces, count: int) -> ScoredPieces:
    """The best `count` pieces; single characters come first, as every word needs them."""
    by_need = sorted(pieces, key=lambda item: len(item[0]) > 1)[:count]
    return sorted(by_need, key=lambda item: (-item[1], item[0]))
