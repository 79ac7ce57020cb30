"""A chat without a terminal in front: turns, retries, what is dropped from a full context, and
answers that are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.engine.tiny import tiny
from weft.cli.chat_commands import run_command
from weft.cli.chat_session import ChatSession, Turn
from weft.core.errors import WeftError
from weft.engine.loaded_model import LoadedModel
from weft.engine.request_builder import GenerationOptions

TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:"


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    checkpoint = replace(tiny("decoder", max_len=120), chat_template=TURNS)
    with LoadedModel(checkpoint) as model:
        yield model


def chat(loaded: LoadedModel, max_tokens: int = 4, **keywords: float) -> ChatSession:
    keywords = {"temperature": 0.0, **keywords}
    return ChatSession(loaded, GenerationOptions.of(max_tokens, **keywords))


def ignore(text: str) -> None:
    pass


def test_an_answer_follows_from_the_turns_before_it(loaded: LoadedModel) -> None:
    session = chat(loaded)
    session.system = "the"
    pieces: list[str] = []
    first = session.ask("a cat", pieces.append)
    assert "".join(pieces) == first.text == session.turns[0].answer
    second = session.ask("a dog", ignore)
    prompt = f"s:the u:a cat a:{first.text} u:a dog a:"
    assert second.text == loaded.generate(prompt, 4, temperature=0.0)
    assert second.num_prompt == len(loaded.prompt_ids(prompt))


def test_later_prompts_are_cached(loaded: LoadedModel) -> None:
    session = chat(loaded, 20)
    session.ask("the cat sat on the mat a dog ate two apples", ignore)
    answer = session.ask("a dog", ignore)
    assert 16 <= answer.num_cached < answer.num_prompt
    assert answer.tokens_per_second is None or answer.tokens_per_second > 0


def test_a_retry_has_a_new_seed_and_replaces_the_answer(loaded: LoadedModel) -> None:
    session = chat(loaded, 12, temperature=1.0)
    first = session.ask("a cat", ignore)
    seeds, answers = {session.options.sampling.seed}, {first.text}
    for _ in range(3):
        assert run_command(session, "/retry").action == "retry"
        answers.add(session.retry(ignore).text)
        seeds.add(session.options.sampling.seed)
    assert len(seeds) == 4 and len(answers) > 1
    assert [turn.question for turn in session.turns] == ["a cat"]
    assert session.turns[0].answer in answers
    repeated = loaded.generate(
        "u:a cat a:", 12, temperature=1.0, seed=session.options.sampling.seed
    )
    assert repeated == session.turns[0].answer


def interrupted_after(number: int, session: ChatSession) -> None:
    """Let Ctrl-C come after so many pieces of the next answer."""

    @contextmanager
    def stoppable() -> Iterator[None]:
        if number == 0:
            raise KeyboardInterrupt
        yield

    session.stoppable = stoppable


def test_a_stopped_answer_is_kept_as_far_as_it_came(loaded: LoadedModel) -> None:
    session, pieces = chat(loaded, 40), []

    def stop(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    answer = session.ask("a cat", stop)
    assert answer.is_stopped and answer.num_tokens < 40
    assert session.turns == [Turn("a cat", "".join(pieces))]
    assert not session.ask("a dog", ignore).is_stopped, "its request was aborted"


def test_an_answer_stopped_before_its_first_token_changes_nothing(loaded: LoadedModel) -> None:
    session = chat(loaded)
    session.ask("a cat", ignore)
    before = list(session.turns)
    interrupted_after(0, session)
    assert session.ask("a dog", ignore).is_stopped and session.turns == before
    assert session.retry(ignore).is_stopped and session.turns == before


def test_the_oldest_turns_can_be_dropped(loaded: LoadedModel) -> None:
    session = chat(loaded, 30)
    for _ in range(9):
        if not session.context("a cat").is_enough:
            break
        session.ask("a cat", ignore)
    use = session.context("a cat")
    assert use.room < use.needed == 30
    number = session.num_to_drop("a cat")
    assert number is not None
    session.drop(number)
    assert session.context("a cat").room >= session.limit // 2
    num_turns, kept = len(session.turns), session.turns[number:]
    answer = session.ask("a cat", ignore)
    text = "".join(f"u:{one.question} a:{one.answer} " for one in kept) + "u:a cat a:"
    assert answer.num_prompt == len(loaded.prompt_ids(text))
    assert len(session.turns) == num_turns + 1, "nothing is lost"


def test_a_message_that_can_never_fit_is_refused(loaded: LoadedModel) -> None:
    session, message = chat(loaded), "the cat sat on the mat " * 40
    session.ask("a cat", ignore)
    assert session.num_to_drop(message) is None
    with pytest.raises(WeftError, match=r"but the context has 120, answer included"):
        session.ask(message, ignore)
    assert len(session.turns) == 1


def test_commands_change_the_session(loaded: LoadedModel) -> None:
    session = chat(loaded)
    assert run_command(session, "/system  Be brief. ").text == "system message set."
    assert session.system == "Be brief."
    assert run_command(session, "/system -").text == "system message removed."
    assert run_command(session, "/set temperature=0.5").text == "temperature is 0.5."
    assert run_command(session, "/set max-tokens 7").text == "max_tokens is 7."
    assert session.options.sampling.temperature == 0.5 and session.max_tokens == 7
    assert run_command(session, "/tokens").text == "0 of 120 tokens, in 0 turns; 120 left."
    assert "/undo" in run_command(session, "/help").text
    assert run_command(session, "/exit").action == "exit"
    session.ask("a cat", ignore)
    assert run_command(session, "/undo").text == "removed 'a cat' and its answer; 0 turns left."
    assert session.turns == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/undo", "there is no turn to undo"),
        ("/retry", "there is no answer to retry yet"),
        ("/undo 3", "/undo takes no argument, but has '3'"),
        ("/st", "'/st' is not a command. Did you mean /set?"),
        ("/usr/bin/env", "begin with // to send a message that begins with a slash"),
        ("/set temprature 1", "Did you mean 'temperature'?"),
        ("/set warmth", "'warmth' is not a known setting of a chat"),
        ("/set temperature -1", "temperature is -1: it must be greater than or equal to 0"),
        ("/set max_tokens 0", "max_tokens is '0': it must be a number above 0"),
        ("/set logprobs 3", "'logprobs' is not a known setting of a chat"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(loaded: LoadedModel, line: str, message: str) -> None:
    with pytest.raises(WeftError) as raised:
        run_command(chat(loaded), line)
    assert message in str(raised.value)
