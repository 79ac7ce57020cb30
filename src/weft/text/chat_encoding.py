"""Conversation -> token ids: special tokens in message content stay text, those of the template do
not.

The text "<|im_end|>" in a user's message must not end that message (prompt injection), although the
template writes the same characters after it. Where content of a user, system, developer or tool
message contains the name of a special token:

    1  HiddenNames     each name in the content is replaced by a number, and the template rendered
    2  RenamedTokens   names that are left in the rendered text are the template's, or in content of
                       the assistant: they are replaced by the names that these tokens have in a
                       second tokenizer
    3                  the numbers are replaced by what they stand for, which is text for that
                       tokenizer, and it encodes the result

So the text is split and normalized exactly as it would be without the change, and templates that
trim or otherwise transform content still work. All other conversations are encoded as
`transformers` does it, in one call of the tokenizer.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.core.errors import UsageError
from weft.text.chat_template import ChatTemplate, Message, check_messages
from weft.text.encoding import TextReport, check_encodable
from weft.text.tokenizer import Tokenizer

PROTECTED_ROLES = ("user", "system", "developer", "tool")
"""Content of the assistant is parsed as the template writes it: its tokens were generated."""


class ChatEncoder:
    """Encodes conversations with one template and one tokenizer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template, self.tokenizer = template, tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        special = {index: token for index, token in added.items() if token.special}
        self.ids = {token.content: index for index, token in special.items()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self.names = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        is_normalized = any(token.normalized for token in special.values())
        self.has_variants = is_normalized and tokenizer.backend.normalizer is not None
        """Whether text that differs from a name, such as capitals, can be that special token."""

    def encode(self, messages: Sequence[Message], **extra: Any) -> list[int]:
        """The ids of a conversation up to the next answer; `extra` as in ChatTemplate.render."""
        checked = check_messages(messages)
        contents = [one["content"] for one in checked if one["role"] in PROTECTED_ROLES]
        without_names = "".join(self.names.sub("\0", text).strip() for text in contents)
        is_joined = self.names.search(without_names) is not None
        if not is_joined and not any(map(self.has_special, contents)):
            text = self.template.render(messages, **extra)
            return self.tokenizer.encode(text, False, sys.maxsize, parse_special=True)
        hidden = HiddenNames(self.names, is_joined)
        text = self.template.render([hidden.hide_in(one) for one in checked], **extra)
        renamed, number = self.names.subn(lambda match: self.renamed.names[match[0]], text)
        ids = self.renamed.encode(hidden.restore(renamed))
        if sum(map(self.renamed.special.__contains__, ids)) < number:
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

    @cached_property
    def renamed(self) -> RenamedTokens:
        return RenamedTokens(self.tokenizer.backend, self.ids)


class HiddenNames:
    """Names of special tokens as numbers, which no template transforms. A number begins with random
    digits, so that no content can contain it."""

    def __init__(self, names: re.Pattern[str], has_bounds: bool) -> None:
        """`has_bounds`: content begins and ends with the number of nothing, because two messages
        that a template joins would become a name."""
        self.names, self.has_bounds = names, has_bounds
        # the first digit occurs once: a number cannot be found across its own beginning
        self.start = "1" + "".join(secrets.choice("23456789") for _ in range(23))
        self.hidden: list[str] = [""]

    def hide_in(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with a number for each name in its content, if its role is protected."""
        if message["role"] not in PROTECTED_ROLES:
            return message
        content: str = message["content"]
        hidden = self.names.sub(lambda match: self.number(match[0]), content)
        body = hidden.strip()
        if self.has_bounds and body:  # inside of white space, which a template may remove
            before, after = hidden.split(body, 1)
            hidden = f"{before}{self.number('')}{body}{self.number('')}{after}"
        return {**message, "content": hidden}

    def number(self, name: str) -> str:
        if name not in self.hidden:
            self.hidden.append(name)
        return f"{self.start}{self.hidden.index(name):04d}"

    def restore(self, text: str) -> str:
        """The text with the names; a UsageError if the template cut a number into pieces."""
        restored = re.sub(self.start + r"(\d{4})", lambda match: self.hidden[int(match[1])], text)
        if self.start[:8] in restored or self.start[-8:] in restored:
            raise self.error()
        return restored

    def error(self) -> UsageError:
        names = " and ".join(repr(name) for name in self.hidden if name) or "a part of a name"
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
