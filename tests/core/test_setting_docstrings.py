"""The docstring of every setting says more than its name, and names the choices that it has."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

import weft
from weft.core.config import Config

FILLER = """a all an and are as at be by every for from if in is it its no none not of on or that
the their them they this to true false which with yes"""
MIN_WORDS = 4
"""Words of a docstring besides filler and those of the setting's name."""


def subclasses(cls: type[Config]) -> Iterator[type[Config]]:
    for inner in cls.__subclasses__():
        yield inner
        yield from subclasses(inner)


@pytest.fixture(scope="module")
def settings() -> dict[str, tuple[str, FieldInfo]]:
    """Name and field by class and name, of every settings class; those of bench/ have none."""
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__") and ".bench" not in module.name:
            importlib.import_module(module.name)
    classes = [cls for cls in subclasses(Config) if cls.__module__.startswith("weft.")]
    return {
        f"{cls.__name__}.{name}": (name, cls.model_fields[name])
        for cls in classes
        for name in cls.model_fields
        if name in cls.__dict__.get("__annotations__", {})
    }


def stems(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", text.lower())}


def other_words(name: str, description: str) -> set[str]:
    return stems(description) - stems(name.replace("_", " ")) - stems(FILLER)


def choices(field: FieldInfo) -> list[str]:
    annotations = (field.annotation, *get_args(field.annotation))
    literals = [one for one in annotations if get_origin(one) is Literal]
    return [str(value) for one in literals for value in get_args(one)]


Settings = dict[str, tuple[str, FieldInfo]]


def test_the_docstring_of_a_setting_says_more_than_its_name(settings: Settings) -> None:
    weak = {
        setting: field.description
        for setting, (name, field) in settings.items()
        if len(other_words(name, field.description or "")) < MIN_WORDS
    }
    assert weak == {} and len(settings) > 200


def test_the_docstring_of_a_setting_names_its_choices(settings: Settings) -> None:
    unnamed = {
        setting: choice
        for setting, (_, field) in settings.items()
        for choice in choices(field)
        if len(choices(field)) > 1 and choice.lower() not in (field.description or "").lower()
    }
    assert unnamed == {}


def test_weak_docstrings_are_recognized() -> None:
    assert len(other_words("page_size", "The size of a page, in pages.")) == 0
    assert len(other_words("page_size", "Tokens per page.")) < MIN_WORDS
    assert len(other_words("kv_rank", "Width of the compressed row that the cache stores.")) >= 4
