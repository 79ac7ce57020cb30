"""Signals are acknowledged by a thread, while Python cannot run a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from weft.training.signals import acknowledge_signals, stop_on_signals


def wait_until(is_true) -> None:
    end = time.monotonic() + 20
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)
    assert is_true()


def test_the_first_signal_is_reported_and_the_second_ends_the_process() -> None:
    reported, codes, clock = [], [], [0.0]
    with (
        stop_on_signals() as stop,
        acknowledge_signals(lambda: reported.append(1), codes.append, lambda: clock[0]),
    ):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: reported)
        assert stop.is_set and stop.signal == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)  # a parent that forwards the same key
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        assert (reported, codes) == ([1], [])
        clock[0] = 2.0
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: codes)
        assert (reported, codes) == ([1], [130])
    assert "signals" not in [thread.name for thread in threading.enumerate()]
    assert signal.set_wakeup_fd(-1) == -1, "the file descriptor was restored"


def test_it_is_reported_while_the_main_thread_is_in_one_long_call() -> None:
    """The handler runs after the call, 3 seconds later; the report comes at once."""
    script = """
import ctypes, time
from weft.training.signals import acknowledge_signals, stop_on_signals
def report():
    print("reported", time.monotonic(), flush=True)
with stop_on_signals() as stop, acknowledge_signals(report):
    print("ready", flush=True)
    end = time.monotonic() + 3
    while time.monotonic() < end:  # as torch: in C, without the interpreter lock
        ctypes.CDLL(None).poll(None, 0, 3000)
    print("handled", stop.is_set, flush=True)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        word, moment = process.stdout.readline().split()
        assert word == "reported" and float(moment) - begin < 0.2
        assert process.stdout.readline() == "handled True\n"


def test_in_another_thread_nothing_is_replaced() -> None:
    handlers = []

    def run() -> None:
        with stop_on_signals(), acknowledge_signals(lambda: None):
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_a_closed_terminal_stops_a_run_but_not_below_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run below nohup
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: stop.is_set)
        assert stop.signal == signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and not stop.is_set
    finally:
        signal.signal(signal.SIGHUP, before)
