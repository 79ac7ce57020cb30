"""Conversation -> token ids: special tokens in what a caller sends stay text, those of the template
do not.

The text "<|im_end|>" in a user's message must not end that message (prompt injection), although the
template writes the same characters after it. The same holds for the definitions of tools, their
results, the arguments of their calls and all other variables of the template; only the role, and
text and reasoning of the assistant, are parsed, unless its message has `is_protected`: true. Where
protected text has the name of a special token:

    1  HiddenNames     each name in it is replaced by a number, and the template rendered
    2  RenamedTokens   names that are left in the rendered text are the template's, or in text of
                       the assistant: they are replaced by the names that these tokens have in a
                       second tokenizer
    3                  the numbers are replaced by what they stand for, which is text for that
                       tokenizer, and it encodes the result

So the text is split and normalized exactly as it would be without the change, and templates that
trim or otherwise transform content still work. All other conversations are encoded as
`transformers` does it, in one call of the tokenizer. Threads may encode at the same time.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.core.errors import UsageError
from weft.text.chat_messages import REASONING_KEYS, Message, check_messages, plain
from weft.text.chat_template import ChatTemplate
from weft.text.encoding import TextReport, check_encodable
from weft.text.tokenizer import Tokenizer

PARSED = frozenset(["role"])
"""Keys of a message whose values are not protected."""
PARSED_OF_ASSISTANT = frozenset(["role", "content", *REASONING_KEYS])
"""Text of the assistant is parsed as the template writes it: its tokens were generated."""


class ChatEncoder:
    """Encodes conversations with one template and one tokenizer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template, self.tokenizer = template, tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        special = {index: token for index, token in added.items() if token.special}
        self.ids = {token.content: index for index, token in special.items()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self.names = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.parts = NameParts(self.ids)
        is_normalized = any(token.normalized for token in special.values())
        self.has_variants = is_normalized and tokenizer.backend.normalizer is not None
        """Whether text that differs from a name, such as capitals, can be that special token."""
        self.lock = threading.Lock()
        self.second_tokenizer: RenamedTokens | None = None

    def encode(self, messages: Sequence[Message], /, **extra: Any) -> list[int]:
        """The ids of a conversation; arguments as in ChatTemplate.render."""
        checked = check_messages(messages)
        variables = {name: plain(value, name) for name, value in extra.items()}
        texts = [text for one in checked for text in protected_texts(one)]
        texts += texts_in(variables)
        is_joined = self.parts.can_join(self.names.sub("\0", text).strip() for text in texts)
        if not is_joined and not any(map(self.has_special, texts)):
            text = self.template.render(checked, **variables)
            return self.tokenizer.encode(text, False, sys.maxsize, parse_special=True)
        hidden = HiddenNames(self.names, self.parts if is_joined else NameParts(()))
        protected = [hidden.hide_in(one) for one in checked]
        text = self.template.render(protected, **hidden.hide(variables))
        renamed = self.renamed
        text, number = self.names.subn(lambda match: renamed.names[match[0]], text)
        ids = renamed.encode(hidden.restore(text))
        if sum(map(renamed.special.__contains__, ids)) < number:
            raise hidden.error()  # a tokenizer for which a name is not always the special token
        return ids

    def has_special(self, content: str) -> bool:
        """Whether the tokenizer would find a special token in the content."""
        if self.names.search(content):
            return True
        if not self.has_variants:
            return False
        special = frozenset(self.ids.values()) - {self.tokenizer.unknown_id}
        ids = self.tokenizer.encode(content, False, sys.maxsize, True, TextReport())
        return not special.isdisjoint(ids)

    @property
    def renamed(self) -> RenamedTokens:
        """The second tokenizer, built on first use."""
        with self.lock:  # two of them would have different names
            if self.second_tokenizer is None:
                self.second_tokenizer = RenamedTokens(self.tokenizer.backend, self.ids)
            return self.second_tokenizer


def parsed_keys(message: Message) -> frozenset[str]:
    is_parsed = message["role"] == "assistant" and message.get("is_protected") is not True
    return PARSED_OF_ASSISTANT if is_parsed else PARSED


def protected_texts(message: Message) -> Iterator[str]:
    return texts_in({key: item for key, item in message.items() if key not in parsed_keys(message)})


def texts_in(value: Any) -> Iterator[str]:
    """All strings of a plain value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


class NameParts:
    """Finds texts that would become the name of a special token if a template joined them, such as
    "<|im_" and "end|>"."""

    def __init__(self, names: Collection[str]) -> None:
        self.longest = max(map(len, names), default=0)
        self.rests: dict[str, set[str]] = {}
        """What is missing after the beginning of a name: "<|im_" -> {"start|>", "end|>"}."""
        for name in names:
            for at in range(1, len(name)):
                self.rests.setdefault(name[:at], set()).add(name[at:])

    def rests_after(self, text: str) -> set[str]:
        """What would complete a name that begins at the end of the text."""
        ends = (text[-size:] for size in range(1, min(self.longest, len(text) + 1)))
        return {rest for end in ends for rest in self.rests.get(end, ())}

    def can_join(self, texts: Iterator[str]) -> bool:
        """Whether one of the texts ends with the beginning of a name, and one continues it."""
        distinct = {text for text in texts if text}
        rests = {rest for text in distinct for rest in self.rests_after(text)}
        if not rests:
            return False
        beginnings = {rest[:size] for rest in rests for size in range(1, len(rest) + 1)}
        return any(
            text in beginnings or any(text[:size] in rests for size in range(1, self.longest))
            for text in distinct
        )


class HiddenNames:
    """Names of special tokens as numbers, which no template transforms. A number begins with random
    digits, so that no content can contain it."""

    def __init__(self, names: re.Pattern[str], parts: NameParts) -> None:
        """After a text that ends with the beginning of a name, the number of nothing is written,
        because the text that a template writes next would complete the name."""
        self.names, self.parts = names, parts
        # the first digit occurs once: a number cannot be found across its own beginning
        self.start = "1" + "".join(secrets.choice("23456789") for _ in range(23))
        self.numbers: dict[str, int] = {"": 0}

    def hide_in(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with a number for each name in its protected values."""
        keys = parsed_keys(message)
        parsed = {key: item for key, item in message.items() if key in keys}
        return {**self.hide(message), **parsed}

    def hide(self, value: Any) -> Any:
        """A copy of a plain value with a number for each name in its strings."""
        if isinstance(value, str):
            return self.hide_in_text(value)
        if isinstance(value, dict):
            return {self.hide_in_text(key): self.hide(item) for key, item in value.items()}
        return [self.hide(item) for item in value] if isinstance(value, list) else value

    def hide_in_text(self, text: str) -> str:
        hidden = self.names.sub(lambda match: self.number(match[0]), text)
        body = hidden.rstrip()
        if self.parts.rests_after(body):  # before white space, which a template may remove
            hidden = f"{body}{self.number('')}{hidden[len(body) :]}"
        return hidden

    def number(self, name: str) -> str:
        return f"{self.start}{self.numbers.setdefault(name, len(self.numbers)):08d}"

    def restore(self, text: str) -> str:
        """The text with the names; a UsageError if the template cut a number into pieces."""
        hidden = list(self.numbers)
        restored = re.sub(self.start + r"(\d{8})", lambda match: hidden[int(match[1])], text)
        if self.start[:8] in restored or self.start[-8:] in restored:
            raise self.error()
        return restored

    def error(self) -> UsageError:
        names = " and ".join(repr(name) for name in self.numbers if name) or "a part of a name"
        return UsageError(
            f"a message contains {names}: this is the name of a special token, and with this "
            "model's chat template and tokenizer it cannot be encoded as text. Remove it."
        )


class RenamedTokens:
    """The tokenizer with other names for its special tokens, but the same ids. The names are random
    letters: no text contains them, and no normalizer changes them."""

    def __init__(self, backend: Backend, ids: Mapping[str, int]) -> None:
        start = "".join(secrets.choice("bcdfghjkmnpqrstvwxz") for _ in range(20))
        self.names = {name: f"{start}{letters(number)}" for number, name in enumerate(ids)}
        settings = json.loads(backend.to_str())
        for token in settings["added_tokens"]:
            if token["special"]:
                token["content"] = self.names[token["content"]]
        rename_pieces(settings["model"], self.names)
        self.backend = Backend.from_str(json.dumps(settings))
        self.backend.no_truncation()
        self.backend.no_padding()
        pairs = ((self.backend.token_to_id(self.names[name]), ids[name]) for name in ids)
        self.moved = {new: old for new, old in pairs if new != old}
        self.special = frozenset(ids.values())

    def encode(self, text: str) -> list[int]:
        """The ids of a text with the new names."""
        check_encodable([text])
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return [self.moved.get(index, index) for index in ids] if self.moved else ids


def rename_pieces(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename the special tokens in the vocabulary of a tokenizer model, so that no text is
    segmented into one of them."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        merged = {piece for merge in model.get("merges") or () for piece in pieces_of(merge)}
        model["vocab"] = {
            piece if piece in merged else names.get(piece, piece): index
            for piece, index in vocab.items()
        }
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]


def pieces_of(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def letters(number: int) -> str:
    """Four letters for each number below 456,976."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))
