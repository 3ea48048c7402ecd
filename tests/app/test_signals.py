"""A first signal stops all apps of a process; a second one ends the process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import types
from typing import Any

import pytest

import tailrace
from tailrace import App
from tailrace.cli.spark import _run_query
from tailrace.signals import handle_signals
from tests.support.commands import environment


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_ends_every_app_of_a_process(kafka_server, new_topic, group, number):
    """Apps that run concurrently all stop, and the previous signal handlers are restored."""
    before, apps = signal.getsignal(number), []
    for index in range(3):
        app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=f"{group}-{index}")

        @app.handler(new_topic())
        async def handle(value: bytes) -> None: ...

        apps.append(app)
    running = [asyncio.create_task(app.run()) for app in apps]
    # run() starts the app in the first iteration of its event loop.
    await asyncio.sleep(0)
    await asyncio.gather(*(app.wait_ready() for app in apps))

    signal.raise_signal(number)
    async with asyncio.timeout(60):
        await asyncio.gather(*running)

    assert [app.health().status for app in apps] == ["stopping"] * 3
    assert signal.getsignal(number) is before


async def test_a_signal_wakes_a_loop_that_is_about_to_wait_for_events():
    """While there is a listener, a signal wakes its event loop; the wakeup descriptor of a program is not replaced."""

    def wakeup_fd() -> int:
        current = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(current)
        return current

    async def woken(number: int) -> int:
        heard = asyncio.Event()
        with handle_signals([signal.SIGTERM], heard.set):
            seen = wakeup_fd()
            os.write(seen, bytes([number]))
            await asyncio.sleep(0)
        return seen

    outer, inner = (contextlib.ExitStack() for _ in range(2))
    outer.enter_context(handle_signals([signal.SIGTERM], lambda: None))
    inner.enter_context(handle_signals([signal.SIGTERM], lambda: None))
    outer.close()
    still_woken = wakeup_fd()
    inner.close()
    with socket.socket() as own:
        own.setblocking(False)
        signal.set_wakeup_fd(own.fileno())
        with handle_signals([signal.SIGTERM], lambda: None):
            left_alone = wakeup_fd() == own.fileno()
        left_alone = left_alone and wakeup_fd() == own.fileno()
        signal.set_wakeup_fd(-1)

    assert await woken(signal.SIGTERM) != -1
    assert still_woken != -1
    assert wakeup_fd() == -1
    assert left_alone


async def test_every_listener_is_called_and_the_second_signal_is_left_to_the_system():
    """A first signal calls all nested listeners, and restores the default action for the second signal."""
    heard: list[str] = []
    with (
        handle_signals([signal.SIGTERM], lambda: heard.append("outer")),
        handle_signals([signal.SIGTERM, signal.SIGINT], lambda: heard.append("inner")),
    ):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    assert sorted(heard) == ["inner", "outer"]


async def test_an_app_that_starts_after_a_signal_is_ended_by_the_next_one():
    """An app that starts while others stop after a signal is ended by the next signal."""
    heard: list[str] = []
    with handle_signals([signal.SIGTERM], lambda: heard.append("first")):
        signal.raise_signal(signal.SIGTERM)
        with handle_signals([signal.SIGTERM], lambda: heard.append("second")):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)

    assert heard == ["first", "second"]


BESIDE = r"""
import asyncio, os, signal, sys, threading, time
import tailrace
from tailrace.cli.spark import _run_query
from tailrace.signals import handle_signals

async def hold(name):
    ended = asyncio.Event()
    with handle_signals([signal.SIGTERM], ended.set):
        os.write(1, f"{name} waits\n".encode())  # whole lines, whichever thread writes
        await ended.wait()
    os.write(1, f"{name} ended\n".encode())

async def main():
    beside = threading.Thread(target=lambda: asyncio.run(hold("thread")))
    beside.start()
    try:
        await hold("main")
    finally:
        while beside.is_alive():
            time.sleep(0.01)

tailrace.run(main())
"""


def test_a_signal_ends_loops_in_other_threads():
    """A signal also ends a run in another thread, which cannot install signal handlers."""
    with subprocess.Popen(
        [sys.executable, "-c", BESIDE], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            begun = {process.stdout.readline(), process.stdout.readline()}
            process.send_signal(signal.SIGTERM)
            ended, _ = process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    assert begun == {"main waits\n", "thread waits\n"}
    assert "thread ended" in ended
    assert process.returncode == 0


def test_run_returns_none_after_a_signal_although_a_nested_listener_was_removed():
    """run() returns None after a signal although a nested listener was added and removed before."""

    async def main() -> str:
        with handle_signals([signal.SIGTERM], lambda: None):
            pass
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)
        return "not ended"

    assert tailrace.run(main()) is None


def test_a_signal_calls_listeners_without_an_event_loop():
    """Without an event loop, a signal calls all listeners, and the previous handler is restored afterwards."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("program"))
    try:
        with (
            handle_signals([signal.SIGTERM], lambda: heard.append("outer")),
            handle_signals([signal.SIGTERM], lambda: heard.append("inner")),
        ):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard == ["outer", "inner", "program"]


class Query:
    """Query on Spark that a signal stops while its end is awaited."""

    counted = argparse.Namespace(records=0, dead_letters=0)

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.is_stopped = number, False

    def await_termination(self, _timeout_s: float) -> bool:
        signal.raise_signal(self.number)
        return False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stream_on_spark_leaves_other_listeners_and_handlers_alone(number, code):
    """The Spark command stops its query at a signal; other listeners are called and previous handlers are restored."""
    query, heard, before = Query(number), [], signal.getsignal(number)
    pipeline: Any = types.SimpleNamespace(
        start=lambda _handler, **_: query, group_status=lambda _handler: argparse.Namespace(group_id="g")
    )
    options = argparse.Namespace(trigger="continuous", max_records_per_batch=None, parallelism=None)

    with handle_signals([number], lambda: heard.append("beside")):
        ended_with = _run_query(pipeline, "handle", options)

    assert (ended_with, query.is_stopped, heard) == (code, True, ["beside"])
    assert signal.getsignal(number) is before
