"""Why a prefix was not shared: the answer is what the engine does."""

from __future__ import annotations

import random

import pytest

from tests.engine.tiny import tiny
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.look.prefix_sharing import CachedPrompt, PrefixSharing, compare_prefixes

TEXT = list(range(5, 25))


def codes(sharing: PrefixSharing) -> list[str]:
    return [reason.code for reason in sharing.reasons]


def test_the_first_different_token_has_its_position_and_both_texts():
    tokenizer = tiny("decoder").tokenizer
    first = tokenizer.encode("the cat sat on the mat", False)
    second = tokenizer.encode("the cat ate on the mat", False)
    sharing = compare_prefixes(CachedPrompt(first), CachedPrompt(second), 2, tokenizer)
    place = sharing.difference.position
    assert first[:place] == second[:place] and first[place] != second[place]
    assert sharing.num_equal == place and sharing.num_shared == place // 2 * 2
    assert tokenizer.decode([first[place]]).strip() in sharing.difference.first_text
    assert f"at token {place}: {first[place]} and {second[place]}" in sharing.reasons[0].message
    assert sharing.to_json()["difference"]["position"] == place


def test_half_of_a_character_is_shown_in_hex():
    tokenizer = tiny("decoder").tokenizer
    first, second = tokenizer.encode("\u4e01", False), tokenizer.encode("\u4e02", False)
    sharing = compare_prefixes(CachedPrompt(first), CachedPrompt(second), 2, tokenizer)
    assert sharing.difference.first_text == "81" and sharing.difference.second_text == "82"


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"key": "b"}, "api_key"), ({"salt": "b"}, "cache_salt"), ({"source": [1]}, "source")],
)
def test_other_namespaces_share_nothing(changes, code):
    sharing = compare_prefixes(CachedPrompt(TEXT), CachedPrompt(TEXT[:9], **changes), 4)
    assert sharing.num_equal == 9 and sharing.num_shared == 0 and codes(sharing)[0] == code


def test_a_disabled_cache_comes_first():
    sharing = compare_prefixes(CachedPrompt(TEXT), CachedPrompt(TEXT), 4, prefix_cache="none")
    assert sharing.num_shared == 0 and codes(sharing)[0] == "cache_disabled"


def test_pages_and_the_last_token_limit_what_is_shared():
    sharing = compare_prefixes(CachedPrompt(TEXT), CachedPrompt(TEXT[:8]), 4, num_cached=0)
    assert sharing.num_shared == 4 and sharing.difference is None
    assert codes(sharing) == ["last_token", "page_boundary", "not_cached"]
    sharing = compare_prefixes(CachedPrompt(TEXT[:8]), CachedPrompt(TEXT), 4, num_cached=8)
    assert sharing.num_shared == 8 and codes(sharing) == []


@pytest.mark.parametrize("prefix_cache", ["radix", "hash", "none"])
def test_the_number_of_shared_tokens_is_what_the_engine_finds(prefix_cache):
    checkpoint, rng = tiny("decoder"), random.Random(4)
    for _ in range(25):
        config = EngineConfig(num_pages=40, page_size=4, prefix_cache=prefix_cache)
        engine = Engine(checkpoint.model, checkpoint.tokenizer, config)
        first = rng.choices(range(5, 8), k=rng.randrange(1, 20))
        second = [*first[: rng.randrange(20)], *rng.choices(range(5, 8), k=rng.randrange(1, 4))]
        salts = [rng.choice(["", "", "x"]) for _ in range(2)]
        cached = []
        for prompt, salt in zip((first, second), salts, strict=True):
            name = engine.submit(GenerationRequest(tuple(prompt), 1, salt=salt))
            times = engine.scheduler.times_of(name)
            while not engine.is_idle:
                engine.step()
            cached.append(times.num_cached)
        prompts = [CachedPrompt(*one) for one in zip((first, second), ("", ""), salts, strict=True)]
        sharing = compare_prefixes(*prompts, 4, prefix_cache=prefix_cache)
        assert sharing.num_shared == cached[1], (first, second, salts)
