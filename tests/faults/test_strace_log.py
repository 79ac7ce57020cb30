"""Lines of strace become calls in the order of their return; what is incomplete is an error."""

from __future__ import annotations

import pytest

from .strace_log import Descriptor, LogError, parse_log


def quoted(text: bytes | str) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    return "".join(f"\\x{byte:02x}" for byte in data)


def parse(*lines: str):
    return list(parse_log(f"{line}\n" for line in lines))


def test_a_call_has_its_strings_descriptors_flags_and_numbers():
    (call,) = parse(
        f'7  openat(AT_FDCWD<{quoted("/w")}>, "{quoted("a, b")}", O_WRONLY|O_CREAT, 0666)'
        f"   = 3<{quoted('/w/a, b')}>"
    )
    assert (call.thread, call.name, call.result, call.ordinal) == (7, "openat", 3, 1)
    assert call.descriptor(0) == Descriptor(None, "/w")
    assert (call.text(1), call.flags(2)) == ("a, b", {"O_WRONLY", "O_CREAT"})


def test_calls_of_threads_are_ordered_by_their_return():
    calls = parse(
        f'7 write(3<{quoted("/a")}>, "{quoted("hi")}", 2 <unfinished ...>',
        f"8 fsync(4<{quoted('/b')}>) = 0",
        "7 <... write resumed>) = 2",
        f'7 write(3<{quoted("/a")}>, "{quoted("ho")}", 2) = 2',
    )
    assert [(call.thread, call.name, call.ordinal) for call in calls] == [
        (8, "fsync", 1),
        (7, "write", 1),
        (7, "write", 2),
    ]
    assert calls[1].data(1) == b"hi"


def test_failed_and_injected_calls_count_and_a_killed_one_is_left_out():
    calls = parse(
        f'7 rmdir("{quoted("/x")}") = -1 ENOENT (No such file or directory)',
        f'7 rmdir("{quoted("/x")}") = -1 EIO (Input/output error) (INJECTED)',
        f'7 rmdir("{quoted("/x")}") = ?',
        "7 +++ killed by SIGKILL +++",
    )
    assert [(call.result, call.is_injected, call.ordinal) for call in calls] == [
        (-1, False, 1),
        (-1, True, 2),
    ]


def test_raw_arguments_and_results_are_hexadecimal():
    (call,) = parse("7  read(0x3, 0x7f0006d11910, 0x20)    = 0x12")
    assert (call.number(0), call.result) == (3, 18)


def test_the_buffers_of_a_vector_are_joined():
    first, second = quoted("ab"), quoted("c, ]}")
    (call,) = parse(
        f'7 writev(3<{quoted("/a")}>, [{{iov_base="{first}", iov_len=2}}, '
        f'{{iov_base="{second}", iov_len=5}}], 2) = 7'
    )
    assert call.vector(1) == b"abc, ]}" and call.number(2) == 2


def test_shortened_strings_and_unknown_lines_are_errors():
    (call,) = parse(f'7 write(3<{quoted("/a")}>, "{quoted("hi")}"..., 20) = 20')
    with pytest.raises(LogError, match="not a complete string"):
        call.data(1)
    (call,) = parse(
        f'7 writev(3<{quoted("/a")}>, [{{iov_base="{quoted("hi")}"..., iov_len=20}}], 1) = 20'
    )
    with pytest.raises(LogError, match="shortened to 2 bytes"):
        call.vector(1)
    with pytest.raises(LogError, match="unknown line"):
        parse("7 something else")
