"""A backend that only knows its pieces -> a `Tokenizer`: added tokens, begin and end, roles."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.foreign.habits import Habits
from weft.text.foreign.side import Side
from weft.text.specials import ROLES, Specials, find_specials
from weft.text.tokenizer import Tokenizer


def finish(
    backend: Backend,
    side: Side,
    habits: Habits,
    own_tokens: Iterable[AddedToken] = (),
    target: Tokenizer | None = None,
) -> Tokenizer:
    """`own_tokens` are those that the vocabulary itself marks as special or as one symbol."""
    specials = find_specials(backend, named(backend, side, habits))
    add_tokens(backend, [*own_tokens, *marked(backend, specials)], side)
    specials = find_specials(backend, named(backend, side, habits))
    set_frame(backend, specials, side, habits)
    return Tokenizer(backend, specials, target=target)


def named(backend: Backend, side: Side, habits: Habits) -> dict[str, object]:
    """The settings with the family's names where they are silent."""
    custom = habits.names.to_file()
    known = {key: name for key, name in custom.items() if backend.token_to_id(name) is not None}
    if any(side.settings.get(key) for key in ("cls_token", "sep_token")):
        known = {key: name for key, name in known.items() if key not in ("bos_token", "eos_token")}
    return {**known, **side.settings}


def marked(backend: Backend, specials: Specials) -> list[AddedToken]:
    """The tokens that have a role by custom, as special ones."""
    names = {getattr(specials, role) for role in ROLES} - {None}
    return [AddedToken(name, normalized=False, special=True) for name in sorted(names)]


def add_tokens(backend: Backend, own_tokens: Iterable[AddedToken], side: Side) -> None:
    """Add what the files list. A declared id that does not come out is a DataError: a model would
    read another token."""
    backend.add_tokens(list(own_tokens))
    for index, token in side.declared.items():
        backend.add_tokens([token])
        found = backend.token_to_id(token.content)
        if found != index:
            raise DataError(
                f"added token {token.content!r} has id {index}, but the vocabulary gives it "
                f"{found}. The files do not belong together; put a tokenizer.json beside them.",
                side.path,
            )
    backend.add_tokens(list(side.special_tokens()))


def set_frame(backend: Backend, specials: Specials, side: Side, habits: Habits) -> None:
    """The begin and the end that every text gets."""
    wants_begin = side.flag("add_bos_token", habits.add_begin)
    wants_end = side.flag("add_eos_token", habits.add_end)
    before = specials.begin if wants_begin else None
    after = specials.end if wants_end else None
    if before is None and after is None:
        return
    ids = {name: backend.token_to_id(name) for name in (before, after) if name is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=[name for name in (before, "$A", after) if name is not None],
        special_tokens=list(ids.items()),
    )
