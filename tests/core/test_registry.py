"""`pick` and `nearest`: a name finds its variant, a wrong one finds the name that was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import ConfigError
from weft.core.registry import nearest, pick

TABLE = {"rotary": 1, "sinusoidal": 2, "alibi": 3}


@given(st.dictionaries(st.text(min_size=1), st.integers(), min_size=1))
def test_every_name_in_a_table_finds_its_own_entry(table):
    assert {name: pick(table, name, "thing") for name in table} == table


def test_a_name_with_a_slip_finds_the_name_that_was_meant():
    assert nearest("Rotery", TABLE) == "rotary"
    assert nearest("xyz", TABLE) is None


def test_an_unknown_name_is_answered_with_the_nearest_and_the_whole_list():
    with pytest.raises(ConfigError) as caught:
        pick(TABLE, "rotery", "position encoding")
    assert str(caught.value) == (
        "'rotery' is not a known position encoding. Did you mean 'rotary'? "
        "Choose one of: rotary, sinusoidal, alibi."
    )


def test_a_name_unlike_any_other_is_answered_without_a_guess():
    with pytest.raises(ConfigError, match=r"'xyz' is not a known thing\. Choose one of: rotary"):
        pick(TABLE, "xyz", "thing")
