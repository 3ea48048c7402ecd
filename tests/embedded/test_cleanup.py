"""A program that runs a broker leaves no process and no file behind, however it ends."""

from __future__ import annotations

import signal
import textwrap

import psutil
import pytest

pytestmark = pytest.mark.slow

WITH = """
    import time
    from tailrace.testing import KafkaServer

    with KafkaServer() as server:
        print(server.node.pid, flush=True)
        while True:
            time.sleep(0.05)
"""

ASYNC_WITH = """
    import asyncio
    from tailrace.testing import KafkaServer

    async def main():
        async with KafkaServer() as server:
            print(server.node.pid, flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""

NO_BLOCK = """
    import time
    from tailrace.testing import KafkaServer

    server = KafkaServer()
    server.start()
    print(server.node.pid, flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("script", "number"),
    [
        pytest.param(WITH, signal.SIGINT, id="with-SIGINT"),
        pytest.param(WITH, signal.SIGHUP, id="with-SIGHUP"),
        pytest.param(ASYNC_WITH, signal.SIGINT, id="async-with-SIGINT"),
        pytest.param(ASYNC_WITH, signal.SIGTERM, id="async-with-SIGTERM"),
        pytest.param(NO_BLOCK, signal.SIGTERM, id="no-block-SIGTERM"),
    ],
)
def test_a_signal_ends_the_broker_with_its_program(new_child, temporary, script, number):
    """After SIGINT, SIGTERM or SIGHUP, no broker or file remains, with or without a ``with`` block."""
    child = new_child(script)
    pid = int(child.line())
    assert temporary.brokers == {pid}
    assert len(temporary.run_folders) == 1

    child.process.send_signal(number)

    assert child.wait() != 0
    temporary.assert_nothing_is_left()


def test_the_next_run_removes_what_a_killed_run_left(new_child, temporary):
    """The broker and files of a program that was killed are removed by the next run.

    A process that only has the folder on its command line is not killed.
    """
    first = new_child(WITH)
    orphan = int(first.line())
    (left,) = temporary.run_folders
    bystander = psutil.Popen(["tail", "-f", str(left / "1" / "server.log")])
    try:
        first.process.kill()
        first.wait()
        assert temporary.brokers == {orphan}

        second = new_child(WITH)
        pid = int(second.line())

        assert temporary.brokers == {pid}
        assert not psutil.pid_exists(orphan)
        assert left not in temporary.run_folders
        assert bystander.is_running()
        assert bystander.status() != psutil.STATUS_ZOMBIE
    finally:
        bystander.kill()
        bystander.wait()
    second.process.terminate()
    second.wait()
    temporary.assert_nothing_is_left()


def test_runs_of_living_programs_are_kept(new_child, temporary):
    """Two running programs do not remove each other's brokers."""
    first = new_child(WITH)
    one = int(first.line())
    second = new_child(WITH)
    other = int(second.line())
    assert temporary.brokers == {one, other}

    second.process.terminate()
    second.wait()

    assert temporary.brokers == {one}
    first.process.terminate()
    first.wait()
    temporary.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("script", [WITH, ASYNC_WITH], ids=["with", "async-with"])
def test_a_signal_during_the_start_leaves_no_broker_behind(new_child, temporary, eventually, script, number):
    """A program that is terminated before its broker answers leaves no broker."""
    child = new_child(script)
    eventually(lambda: temporary.brokers, "a JVM")

    child.process.send_signal(number)

    assert child.wait() != 0
    temporary.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("print('the end')", 0),
        ("server.pause(); raise SystemExit(3)", 3),
        ("server.node.kill(); raise RuntimeError('a test failed')", 1),
    ],
)
def test_a_program_that_exits_leaves_no_broker_behind(new_child, temporary, ending, code):
    """A program that ends or exits leaves no broker, even if the broker is dead or paused."""
    child = new_child(f"from tailrace.testing import KafkaServer; server = KafkaServer(); server.start(); {ending}")

    assert child.wait() == code
    temporary.assert_nothing_is_left()


BESIDE_AN_APP = {
    "a server that outlives the app": (
        """
        app = handle_signals([signal.SIGTERM], lambda: None)
        with app:
            server.start()
        """,
        143,
    ),
    "a server that is closed while the app runs": (
        """
        server.start()
        with handle_signals([signal.SIGTERM], lambda: None):
            server.close()
        """,
        -signal.SIGTERM,
    ),
}


@pytest.mark.parametrize("order", BESIDE_AN_APP)
def test_an_app_that_ends_restores_the_signal_handlers_of_servers(new_child, temporary, order):
    """SIGTERM ends the process cleanly while a server runs, after an app has restored its handlers."""
    steps, code = BESIDE_AN_APP[order]
    child = new_child(
        "import signal, time; from tailrace.testing import KafkaServer; from tailrace.signals import handle_signals\n"
        f"server = KafkaServer()\n{textwrap.dedent(steps)}\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    assert child.line() == "ready"
    child.process.send_signal(signal.SIGTERM)

    assert child.wait() == code
    temporary.assert_nothing_is_left()


def test_signals_are_handled_only_while_a_server_runs(new_child, temporary):
    """Signal handlers of the program are kept, and the default ones are restored after the server."""
    child = new_child(
        """
        import asyncio, signal
        from tailrace.testing import KafkaServer

        def own(*_): ...

        signal.signal(signal.SIGHUP, own)

        def state():
            return [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)]

        def mine():
            return signal.getsignal(signal.SIGHUP) is own

        async def main():
            async with KafkaServer():
                print(state(), mine(), flush=True)
            print(state(), mine(), flush=True)

        print(state(), mine(), flush=True)
        with KafkaServer():
            print(state(), mine(), flush=True)
        print(state(), mine(), flush=True)
        asyncio.run(main())
        """
    )

    assert [child.line() for _ in range(5)] == [
        "[True, False] True",
        "[False, False] True",
        "[True, False] True",
        "[False, False] True",
        "[True, False] True",
    ]
    assert child.wait() == 0
    temporary.assert_nothing_is_left()


def test_a_forked_child_does_not_end_its_parents_broker(new_child, temporary):
    """The exit of a forked child does not end the broker of its parent."""
    child = new_child(
        """
        import os, sys
        from tailrace.testing import KafkaServer

        server = KafkaServer()
        server.start()
        with server:
            pid = os.fork()
            if pid == 0:
                sys.exit(7)  # leaves the block, then runs the exit handlers
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), server.node.is_running, os.path.exists(server.node.folder))
        """
    )

    assert child.line() == "7 True True"
    assert child.wait() == 0
    temporary.assert_nothing_is_left()
