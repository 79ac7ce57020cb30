"""The error tree: one root that is a ValueError, every problem at once, file and line named."""

import pytest

from weft.core.errors import ConfigError, DataError, Problem, UsageError, WeftError, shown


@pytest.mark.parametrize("kind", [ConfigError, DataError, UsageError])
def test_every_error_is_a_weft_error_and_a_value_error(kind):
    assert issubclass(kind, WeftError)
    assert issubclass(kind, ValueError)


def test_one_problem_is_one_sentence():
    assert str(ConfigError(["width is 0."], "recipe")) == "width is 0."


def test_many_problems_are_all_listed_with_their_place():
    error = ConfigError(["width is 0.", Problem("heads is 5.", ("heads",))], "recipe")
    assert str(error) == "2 problems in the recipe:\n  - width is 0.\n  - heads is 5."
    assert error.problems == [Problem("width is 0."), Problem("heads is 5.", ("heads",))]


def test_a_config_error_without_a_problem_is_our_mistake():
    with pytest.raises(AssertionError, match="needs at least one problem"):
        ConfigError([])


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ((), "is empty."),
        (("a.txt",), "a.txt: is empty."),
        (("a.txt", 3), "a.txt, line 3: is empty."),
    ],
)
def test_a_data_error_names_what_it_knows_of_the_place(place, text):
    assert str(DataError("is empty.", *place)) == text


def test_a_value_in_a_message_has_a_bounded_length():
    assert shown("a") == "'a'" and shown([1]) == "[1]"
    assert shown("a" * 100) == "'" + "a" * 79 + "..."
