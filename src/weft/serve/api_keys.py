"""API keys: who calls, and which prefix-cache namespace is theirs.

    keys = ApiKeys.from_file(path)              lines `name = key`; # begins a comment
    keys.caller({"authorization": "Bearer ..."})

A key is found in `Authorization: Bearer KEY` or in `x-api-key`. Comparison takes the same time for
every key (hashes, compare_digest). Each key has its own salt, derived from the key and not chosen
by the caller, so that no request can find what another key has cached. Without configured keys all
credentials are ignored: one caller, one namespace.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.core.config import read_text
from weft.core.errors import DataError
from weft.serve.api_errors import ApiError


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    name: str = ""
    """The name of the API key, for logs and fair queueing; empty without keys."""
    salt: str = ""
    """Namespace in the prefix cache."""

    def salted(self, cache_salt: str | None) -> str:
        """The namespace of a request; `cache_salt` divides that of the key further."""
        return self.salt if not cache_salt else f"{self.salt}/{cache_salt}"


ANYONE = Caller()
VARIABLE = "WEFT_API_KEY"
"""The environment variable with keys, separated by commas. The first has this name too, others
WEFT_API_KEY_2 and so on."""


class ApiKeys:
    """The configured keys."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """`keys`: name -> key; empty: no key is needed."""
        self.callers = {
            hashlib.sha256(key.encode()).digest(): Caller(name, salt_of(key))
            for name, key in keys.items()
        }

    def __bool__(self) -> bool:
        return bool(self.callers)

    @classmethod
    def from_file(cls, path: Path) -> ApiKeys:
        """Read lines `name = key`."""
        return cls(read_keys(path))

    @classmethod
    def configured(cls, path: Path | None, environ: Mapping[str, str]) -> ApiKeys:
        """The keys of a file and those of WEFT_API_KEY in the environment."""
        keys = {} if path is None else read_keys(path)
        texts = (text.strip() for text in environ.get(VARIABLE, "").split(","))
        for number, key in enumerate(dict.fromkeys(filter(None, texts)), 1):
            if key not in keys.values():
                keys[VARIABLE if number == 1 else f"{VARIABLE}_{number}"] = key
        return cls(keys)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request; an ApiError 401 if its key is missing or wrong."""
        if not self.callers:
            return ANYONE
        key = key_of(headers)
        if key is None:
            raise ApiError(
                401,
                "no API key was sent. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                code="invalid_api_key",
            )
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for known, caller in self.callers.items():  # all of them: equal time for every key
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise ApiError(401, "the API key is not valid.", code="invalid_api_key")
        return found

    def is_caller(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has a valid key, or needs none."""
        try:
            self.caller(headers)
        except ApiError:
            return False
        return True


def read_keys(path: Path) -> dict[str, str]:
    """name -> key of the lines `name = key`; a line that begins with # is a comment."""
    keys: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, key = (part.strip() for part in line.partition("="))
        if not (name and equals and key):
            raise DataError("a line must be `name = key`. Correct it.", path, number)
        if name in keys or key in keys.values():
            raise DataError(f"the name or key of '{name}' occurs twice.", path, number)
        keys[name] = key
    if not keys:
        raise DataError("it has no key. Add lines `name = key`.", path)
    return keys


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key in the headers (lower-case names) of a request."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def salt_of(key: str) -> str:
    """A namespace that does not reveal the key."""
    return hashlib.sha256(b"weft prefix cache\0" + key.encode()).hexdigest()[:32]
