"""The frame of the command line: help without torch, exit codes, one-line errors, quiet endings."""

import errno
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated

import pytest
import typer

from weft import __version__
from weft.cli.app import COMMANDS, Command, exit_code, main, sentence, take_debug
from weft.core.errors import ConfigError, DataError, UsageError

HELP_LINES = [[], *([name] for name in COMMANDS)]


@pytest.fixture
def commands(monkeypatch):
    """A table of two commands made on the spot: `fail` raises what its argument names."""
    raises = {
        "config": ConfigError(["width is 0.", "heads is 3."]),
        "usage": UsageError("the prompt is too long."),
        "data": DataError("is empty.", "a.txt", 3),
        "os": FileNotFoundError(2, "No such file or directory", "b.txt"),
        "bug": ZeroDivisionError("division by zero"),
        "text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        "interrupt": KeyboardInterrupt(),
    }

    def fail(what: str, exit_with: Annotated[int, typer.Option()] = 0) -> None:
        """Raise an error.

        \b
        weft fail config
        weft fail usage
        """
        print("a result")
        if exit_with:
            raise typer.Exit(exit_with)
        if what in raises:
            raise raises[what]

    group = typer.Typer(help="Several.")
    group.command("one")(lambda: print("one"))
    add_module(monkeypatch, "fake_fail", command=fail)
    add_module(monkeypatch, "fake_group", app=group)
    return {
        "fail": Command("fake_fail", "Fail."),
        "group": Command("fake_group", "Several."),
        "absent": Command("module_that_is_not_there", "Never imported."),
    }


def add_module(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def weft(*args, **options):
    """Run the program in its own process."""
    command = [sys.executable, "-m", "weft", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("words", HELP_LINES, ids=lambda words: " ".join(words) or "weft")
def test_help_is_quick_and_leaves_torch_alone(words):
    code = (
        "import sys; from weft.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(3 if 'torch' in sys.modules else code)"
    )
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: weft" in done.stdout
    after = os.times()
    # time of the processor, as tests share their machine; well under a second
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 2.0


def test_help_lists_every_command_with_its_line(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in shown
        assert command.help in shown


def test_without_arguments_the_help_is_printed(capsys):
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    for args in ([], ["--debug"]):
        assert main(args) == 0
        assert capsys.readouterr().out == help_text


def test_a_command_without_its_sub_command_prints_its_help(commands, capsys):
    assert main(["group", "--help"], commands) == 0
    help_text = capsys.readouterr().out
    assert main(["group"], commands) == 0
    assert capsys.readouterr().out == help_text != ""


def test_only_the_chosen_command_is_imported(commands, capsys):
    assert main(["--help"], commands) == 0
    assert main(["fail", "nothing"], commands) == 0
    assert capsys.readouterr().out.endswith("a result\n")
    assert main(["absent"], commands) == 1
    assert "module_that_is_not_there" in capsys.readouterr().err


def test_help_of_a_command_keeps_its_examples_on_their_lines(commands, capsys):
    assert main(["fail", "-h"], commands) == 0
    assert "  weft fail config\n  weft fail usage\n" in capsys.readouterr().out


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weft {__version__}\n"


def test_a_command_with_sub_commands_calls_the_named_one(commands, capsys):
    assert main(["group", "one"], commands) == 0
    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        ("usage", 2, "the prompt is too long."),
        ("config", 2, "2 problems in the settings:\n  - width is 0.\n  - heads is 3."),
        ("data", 1, "a.txt, line 3: is empty."),
        ("os", 1, "b.txt: No such file or directory."),
        ("text", 1, "The input is not UTF-8 text"),
        ("bug", 1, "Weft failed with ZeroDivisionError: division by zero. Run it again with"),
    ],
)
def test_an_error_is_one_sentence_on_stderr_and_an_exit_code(commands, capsys, what, code, line):
    assert main(["fail", what], commands) == code
    shown = capsys.readouterr()
    assert shown.out == "a result\n"
    assert shown.err.startswith(line)
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("args", [["--debug", "fail", "data"], ["fail", "data", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_command(commands, capsys, args):
    assert main(args, commands) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "DataError: a.txt, line 3: is empty." in shown


def test_debug_after_two_dashes_is_an_argument():
    assert take_debug(["a", "--debug", "--", "--debug"]) == (["a", "--", "--debug"], True)
    assert take_debug(["a", "--", "--debug"]) == (["a", "--", "--debug"], False)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["fial"], "'fial' is not a known command. Did you mean 'fail'? Choose one of: fail,"),
        (["xyzzy"], "'xyzzy' is not a known command. Choose one of: fail, group, absent."),
        (["fail"], "Missing argument 'what'. See 'weft fail --help'."),
        (["fail", "a", "b"], "Got unexpected extra argument(s) (b). See 'weft fail"),
        (["fail", "a", "--exit-with", "x"], "--exit-with is x: it must be a valid integer"),
        (
            ["fail", "--exit-with"],
            "Option '--exit-with' requires an argument. See 'weft fail --help'.",
        ),
        (["fail", "a", "--exit-wit", "1"], "No such option: --exit-wit"),
        (["group", "onne"], "No such command 'onne'. Did you mean 'one'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(commands, capsys, args, line):
    assert main(args, commands) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1


def test_a_command_may_choose_its_exit_code(commands):
    assert main(["fail", "nothing", "--exit-with", "7"], commands) == 7


def test_an_interrupt_ends_with_130_and_no_traceback(commands, capsys):
    assert main(["fail", "interrupt"], commands) == 130
    assert capsys.readouterr().err == ""


LONG_COMMAND = """
import sys, time, types
from weft.cli.app import Command, main
def command(lines: int) -> None:
    for line in range(lines):
        print(line, flush=True)
    time.sleep(20 if lines < 5 else 0)
sys.modules["long"] = types.ModuleType("long")
sys.modules["long"].command = command
sys.exit(main(sys.argv[1:], {"long": Command("long", "Print lines.")}))
"""


def start_long(*args, **options):
    command = [sys.executable, "-c", LONG_COMMAND, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("args", [["long", "100000"], ["long", "--help"]])
def test_a_broken_pipe_ends_quietly(args):
    process = start_long(*args)
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_signal_from_the_keyboard_ends_the_process_with_130():
    with start_long("long", "1") as process:
        assert process.stdout.readline() == b"0\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == b""


def test_text_is_utf8_whatever_the_locale_says():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = weft("\u5b83", env=environment, encoding="utf-8")
    assert done.returncode == 2
    assert done.stderr.startswith("'\u5b83' is not a known command.")


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


@needs_full
@pytest.mark.parametrize("args", [["--help"], ["settings"]])
def test_output_that_a_full_disk_does_not_take_is_one_sentence(args):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "weft", *args], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == (
        "The output cannot be written (No space left on device). Free some space, or write it to "
        "another place, and run it again.\n"
    )


def test_a_disk_that_fails_while_a_file_is_read_is_not_an_error_of_the_output():
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    expected = "A file cannot be read or written (Input/output error). Check the disk."
    assert sentence(error) == expected and exit_code(error) == 1


NOISY_COMMAND = """
import logging, sys, types
from weft.cli.app import Command, main
from weft.cli.output import status
def command() -> None:
    for number in range(3):
        status(f"step {number}")
        logging.getLogger("weft").warning("step %s", number)
    print("result")
sys.modules["noisy"] = types.ModuleType("noisy")
sys.modules["noisy"].command = command
sys.exit(main(["noisy"], {"noisy": Command("noisy", "Report and print.")}))
"""


@needs_full
def test_a_log_that_a_full_disk_does_not_take_ends_no_command():
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", NOISY_COMMAND], stdout=subprocess.PIPE, stderr=full, text=True
        )
    assert (done.returncode, done.stdout) == (0, "result\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device(closed, tmp_path):
    """A file that is opened later must not be standard output."""
    code = NOISY_COMMAND.replace(
        "    print(", f"    open({str(tmp_path / 'a')!r}, 'w')\n    print("
    )
    command = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if " >" in f" {closed}" else "result\n")
    assert "Traceback" not in done.stderr and (tmp_path / "a").read_bytes() == b""
