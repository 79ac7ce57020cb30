"""`ChatSession`: a conversation with a model. Messages -> answers, within the context length.

    session = ChatSession(loaded, options, system="Answer in one word.")
    answer = session.ask("What is the capital of France?", show=print)
    session.draw_seed()
    session.retry(show=print)             another answer
    session.undo()                        removes the last turn

Independent of the terminal. An answer that Ctrl-C interrupts is kept as far as it was generated; if
no token was generated, the conversation does not change. Turns can be dropped from the model's
input when the context is full; they remain in `turns`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.config import parse_override
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.engine.client import Completion
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import RequestOutput
from weft.engine.request_builder import GenerationOptions
from weft.engine.request_iterator import RequestIterator
from weft.engine.scheduling.admission import longest_sequence
from weft.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 1024
"""Default length limit of an answer; higher than for other texts, because answers end by
themselves."""
MAX_SEED = 2**31
MIN_SECONDS = 0.01
"""Shortest time from which a speed is computed."""

Show = Callable[[str], None]
"""Called with each piece of an answer."""


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str


@dataclass
class Answer:
    """An answer, and the numbers of its status line."""

    num_prompt: int
    limit: int
    """Maximum number of tokens."""
    is_limit_of_context: bool
    completion: Completion = field(default_factory=Completion)
    num_cached: int = 0
    """Prompt tokens found in the prefix cache."""
    first_at: float = 0.0
    num_first: int = 0
    """Tokens of the first step."""
    ended_at: float = 0.0
    is_stopped: bool = False
    """Whether Ctrl-C interrupted it."""

    @property
    def text(self) -> str:
        return self.completion.text

    @property
    def num_tokens(self) -> int:
        return len(self.completion.tokens)

    @property
    def is_cut(self) -> bool:
        """Whether it ended at its maximum number of tokens."""
        finish = self.completion.finish
        return finish is not None and finish.reason == "length"

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, without the first step, which computes the prompt; None: too short to
        measure."""
        seconds = self.ended_at - self.first_at
        return (self.num_tokens - self.num_first) / seconds if seconds > MIN_SECONDS else None

    def add(self, output: RequestOutput) -> None:
        self.ended_at = time.monotonic()
        self.completion.add(output)
        if not self.first_at:
            self.first_at, self.num_first = self.ended_at, self.num_tokens


@dataclass(frozen=True)
class ContextUse:
    """Tokens of the next prompt, and the limit for prompt and answer together."""

    num_prompt: int
    limit: int
    needed: int
    """Tokens that should remain for the answer."""

    @property
    def room(self) -> int:
        """Tokens that remain for the answer."""
        return max(0, self.limit - self.num_prompt)

    @property
    def is_enough(self) -> bool:
        return self.room >= self.needed


class ChatSession:
    """A conversation: system message, turns, sampling options."""

    def __init__(
        self,
        loaded: LoadedModel,
        options: GenerationOptions,
        system: str | None = None,
        stoppable: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`stoppable`: context manager around generation, inside of which Ctrl-C raises
        KeyboardInterrupt."""
        self.loaded, self.options, self.system, self.stoppable = loaded, options, system, stoppable
        self.turns: list[Turn] = []
        """All turns, including dropped ones."""
        self.num_dropped = 0
        """Number of the oldest turns that are not part of the prompt any more."""
        scheduler = loaded.client.engine.scheduler
        self.limit = longest_sequence(scheduler.config, scheduler.kv_cache)
        """Maximum length of a conversation in tokens: that of the model, or less if the KV cache is
        small."""

    @property
    def max_tokens(self) -> int:
        return self.options.max_tokens or DEFAULT_MAX_TOKENS

    def messages(
        self, turns: Sequence[Turn], num_dropped: int, question: str | None = None
    ) -> list[dict[str, str]]:
        """The messages of a prompt: system message, turns that are not dropped, question."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in turns[num_dropped:]:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages if question is None else [*messages, {"role": "user", "content": question}]

    def context(self, question: str | None, num_dropped: int | None = None) -> ContextUse:
        """The context used by a prompt with this question and `num_dropped` dropped turns."""
        dropped = self.num_dropped if num_dropped is None else num_dropped
        ids = self.loaded.chat_ids(self.messages(self.turns, dropped, question))
        return ContextUse(len(ids), self.limit, min(self.max_tokens, self.limit // 4))

    def num_to_drop(self, question: str) -> int | None:
        """Number of further turns to drop for an answer to fit: enough to free half of the context
        if possible, else the minimum. None: dropping all turns is not enough."""
        fewest = None
        for number in range(1, len(self.turns) - self.num_dropped + 1):
            use = self.context(question, self.num_dropped + number)
            if use.is_enough:
                fewest = fewest or number
                if use.room >= self.limit // 2:
                    return number
        return fewest

    def drop(self, number: int) -> None:
        """Drop the `number` oldest turns from the prompt."""
        self.num_dropped += number

    def ask(self, question: str, show: Show) -> Answer:
        """Generate the answer to a question, and append both as a turn."""
        answer = self.generate(self.turns, question, show)
        if answer.text or not answer.is_stopped:
            self.turns.append(Turn(question, answer.text))
        return answer

    def retry(self, show: Show) -> Answer:
        """Replace the last answer by a new one."""
        question = self.turns[-1].question
        answer = self.generate(self.turns[:-1], question, show)
        if answer.text or not answer.is_stopped:
            self.turns[-1] = Turn(question, answer.text)
        return answer

    def draw_seed(self) -> int:
        """Choose a new random seed and return it."""
        self.set_sampling(seed=secrets.randbelow(MAX_SEED))
        return self.options.sampling.seed

    def undo(self) -> Turn:
        """Remove the last turn and return it."""
        if not self.turns:
            raise UsageError("there is no turn to undo: the conversation is empty.")
        turn = self.turns.pop()
        self.num_dropped = min(self.num_dropped, len(self.turns))
        return turn

    def generate(self, turns: Sequence[Turn], question: str, show: Show) -> Answer:
        """Generate an answer; it ends by itself, at its maximum length, or at Ctrl-C. Does not
        change the conversation."""
        ids = self.loaded.chat_ids(self.messages(turns, self.num_dropped, question))
        room = self.limit - len(ids)
        if room < 1:
            raise UsageError(
                f"the conversation has {len(ids)} tokens with this message, but the context has "
                f"{self.limit}, answer included. Shorten the message, or start a new conversation."
            )
        limit = min(self.max_tokens, room)
        answer = Answer(len(ids), limit, room <= self.max_tokens)
        try:
            with self.stoppable(), self.stream(ids, limit) as outputs:
                for output in outputs:
                    answer.num_cached = next(iter(outputs.times.values())).num_cached
                    answer.add(output)
                    show(output.text)
        except KeyboardInterrupt:
            answer.is_stopped = True
        return answer

    def stream(self, ids: Sequence[int], limit: int) -> RequestIterator[RequestOutput]:
        return self.loaded.stream(ids, replace(self.options, max_tokens=limit))

    def set(self, name: str, text: str) -> None:
        """Change a sampling parameter or max_tokens from now on; a WeftError for a wrong value."""
        pick(self.settings(), name, "setting of a chat")
        value = parse_override(f"{name}={text}")[1]
        if name != "max_tokens":
            self.set_sampling(**{name: value})
        elif type(value) is not int or value < 1:
            raise UsageError(f"max_tokens is {text!r}: it must be a number above 0.")
        else:
            self.options = replace(self.options, max_tokens=value)

    def set_sampling(self, **values: Any) -> None:
        sampling = SamplingParams.from_dict({**self.options.sampling.to_dict(), **values})
        self.options = replace(self.options, sampling=sampling)

    def settings(self) -> dict[str, Any]:
        """Names and current values of the settings that `set` changes."""
        fields, sampling = SamplingParams.model_fields.items(), self.options.sampling
        names = [name for name, one in fields if one.annotation in (int, float)]
        return {name: getattr(sampling, name) for name in names} | {"max_tokens": self.max_tokens}
