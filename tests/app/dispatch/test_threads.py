"""Threads of plain handlers are reused, end when they are idle, and never keep the program alive."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from tailrace import App, Record, Retry
from tailrace.app.dispatch import threads
from tailrace.app.dispatch.threads import Threads
from tailrace.observe.events import HandlerAbandoned
from tailrace.testing import TestApp
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

greeting: contextvars.ContextVar[str] = contextvars.ContextVar("greeting", default="nothing")


async def test_an_idle_thread_is_reused():
    """An idle thread is reused, with its thread-local state; concurrent calls run in different threads."""
    pool, both = Threads(), threading.Barrier(2)

    def meet() -> int:
        both.wait(10)
        return threading.get_ident()

    first = await pool.call(threading.get_ident)
    second = await pool.call(threading.get_ident)
    together = await asyncio.gather(pool.call(meet), pool.call(meet))

    assert first == second != threading.get_ident()
    assert len({*together}) == 2
    assert first in together


async def test_a_function_sees_the_context_and_its_errors_are_raised():
    """A function sees a copy of the caller's context variables, and its exceptions are raised in the caller."""
    pool = Threads()
    greeting.set("hello")

    def answer() -> str:
        heard = greeting.get()
        greeting.set("in the thread")
        return heard

    heard = await pool.call(answer)

    assert (heard, greeting.get()) == ("hello", "hello")
    with pytest.raises(ZeroDivisionError):
        await pool.call(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.call(lambda: next(iter(())))


async def test_idle_threads_end(monkeypatch):
    """Idle threads end after a burst, and later calls still run."""
    monkeypatch.setattr(threads, "_MAX_IDLE_S", 0.01)
    others = set(threading.enumerate())
    for _ in range(50):
        pool, at_once = Threads(), threading.Barrier(3)
        await asyncio.gather(*(pool.call(lambda at_once=at_once: at_once.wait(10)) for _ in range(3)))
        await until(lambda: not any(one.name == "tailrace handler" for one in {*threading.enumerate()} - others))

        assert await pool.call(lambda: 1) == 1


async def test_a_second_cancellation_abandons_the_thread():
    """A canceled call waits until its function returns; a second cancellation ends the wait at once."""
    pool, let_go, is_back = Threads(), threading.Event(), []

    def hang() -> None:
        let_go.wait(10)
        is_back.append(True)

    patient, impatient = (asyncio.create_task(pool.call(hang)) for _ in range(2))
    await asyncio.sleep(0)
    for _ in range(2):
        impatient.cancel()
        await asyncio.sleep(0)
    patient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert not patient.done()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await patient

    assert is_back


def test_a_function_that_outlives_its_loop_ends_without_an_error():
    """The thread of a function that returns after its event loop was closed ends without an error."""
    let_go, seen = threading.Event(), []

    def hang() -> None:
        seen.append(threading.current_thread())
        let_go.wait(10)

    async def main() -> None:
        call = asyncio.create_task(Threads().call(hang))
        await until(lambda: bool(seen))
        call.cancel()
        await asyncio.sleep(0)

    asyncio.run(main())
    let_go.set()
    seen[0].join(10)

    assert not seen[0].is_alive()


async def test_an_event_names_a_plain_handler_that_hangs():
    """stop() ends in time, and an event names the plain handler that is still running."""
    begun, let_go, events = threading.Event(), threading.Event(), EventRecorder()
    app = App(group_id="g", stop_timeout_ms=500, hooks=[events])

    @app.handler("orders")
    def hang(value: bytes) -> None:
        begun.set()
        let_go.wait(60)

    async with TestApp(app) as kafka:
        await app.publish("orders", b"0")
        await until(begun.is_set)
        async with asyncio.timeout(20):
            await app.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        let_go.set()

        assert [(one.handler.endswith("hang"), one.offset) for one in events.of(HandlerAbandoned)] == [(True, 0)]
        assert kafka.committed("orders") == 0


STUCK = """
import asyncio, sys, threading
from tailrace import App, Record, Retry

app = App(bootstrap_servers=sys.argv[-2], group_id=sys.argv[-1], stop_timeout_ms=1_000)

def hang(value):
    print("hangs", flush=True)
    threading.Event().wait()

@app.{decorator}("{topic}")
def handle({parameter}) -> None:
    hang(0)
"""


@pytest.mark.parametrize("kind", ["handler, App.run", "batch_handler, tailrace run"])
def test_a_plain_handler_that_hangs_does_not_keep_the_process_alive(kafka_server, new_topic, witness, tmp_path, kind):
    """After SIGTERM a process with a hanging plain handler ends within its stop timeout, with exit code 1."""
    topic = new_topic()
    witness.produce(topic, [b"0"])
    decorator, way = kind.split(", ")
    parameter = "values: list[bytes]" if "batch" in kind else "value: bytes"
    program = STUCK.format(decorator=decorator, topic=topic, parameter=parameter)
    servers = kafka_server.bootstrap_servers
    if way == "App.run":
        command = [sys.executable, "-c", f"{program}\nasyncio.run(app.run())", servers, topic]
    else:
        (tmp_path / "stuck.py").write_text(
            program.replace("sys.argv[-2]", repr(servers)).replace("sys.argv[-1]", repr(topic))
        )
        command = [sys.executable, "-m", "tailrace", "run", "stuck:app"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "hangs\n"
            process.send_signal(signal.SIGTERM)
            began_at = time.monotonic()
            code = process.wait(timeout=60)
            took_s = time.monotonic() - began_at
        finally:
            process.kill()

    assert code == 1
    assert took_s < 15


async def test_calls_of_a_plain_batch_handler_share_a_connection_one_after_another(
    kafka_server, new_topic, group, witness, tmp_path
):
    """A plain batch handler runs one call at a time, retries included, so that one SQLite connection loses no rows."""
    partitions, per_partition = 4, 3
    topic = new_topic(partitions)
    for partition in range(partitions):
        witness.produce(topic, [b"%d" % number for number in range(per_partition)], partition=partition)
    database = sqlite3.connect(tmp_path / "rows.db", check_same_thread=False)
    database.execute("CREATE TABLE rows (partition INTEGER, number INTEGER)")
    failed: set[int] = set()
    running, most = [], []

    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, retry=Retry(attempts=9, backoff_ms=1))

    @app.batch_handler(topic, max_records=per_partition)
    def store(records: list[Record]) -> None:
        running.append(1)
        most.append(len(running))
        try:
            with database:
                database.executemany(
                    "INSERT INTO rows VALUES (?, ?)", [(record.partition, int(record.value)) for record in records]
                )
                time.sleep(0.05)
                if records[0].partition not in failed:
                    failed.add(records[0].partition)
                    raise ValueError("the first attempt fails")
        finally:
            running.pop()

    async with app:
        await until(lambda: len(failed) == partitions and app.statistics().handlers[0].records >= 12)

    assert max(most) == 1
    rows = database.execute("SELECT * FROM rows").fetchall()
    database.close()
    assert sorted(rows) == [(partition, number) for partition in range(partitions) for number in range(per_partition)]


@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_an_attempt_of_a_plain_handler_waits_for_its_concurrency(kind):
    """With concurrency=1, another attempt of a plain handler does not run beside a call that runs already."""
    app, together = App(group_id="g", retry=Retry(attempts=5, backoff_ms=1)), []
    running: list[bytes] = []
    second_runs = threading.Event()

    def act(value: bytes) -> None:
        running.append(value)
        together.append(len(running))
        try:
            if value == b"slow":
                second_runs.set()
                time.sleep(0.2)
            elif not second_runs.is_set():
                raise ValueError("before the slow record")
        finally:
            running.remove(value)

    if kind == "record":

        @app.handler("t", order_by="none", concurrency=1)
        def handle(value: bytes) -> None:
            act(value)

    else:

        @app.batch_handler("t", order_by="none", max_records=1)
        def handle_batch(values: list[bytes]) -> None:
            act(values[0])

    async with TestApp(app, virtual_time=False) as kafka:
        await asyncio.gather(kafka.send("t", b"first"), kafka.send("t", b"slow"))

    assert max(together) == 1


def test_the_default_concurrency_depends_on_the_kind_of_batch_handler():
    """Batches of an async handler run eight at a time, those of a plain one, in threads, one at a time."""
    app = App(group_id="g")

    @app.batch_handler("a")
    async def handle(values: list[bytes]) -> None: ...

    @app.batch_handler("b")
    def handle_plain(values: list[bytes]) -> None: ...

    @app.batch_handler("c", concurrency=3)
    def handle_three(values: list[bytes]) -> None: ...

    @app.handler("d")
    def handle_records(value: bytes) -> None: ...

    assert [handler.concurrency for handler in app.declared] == [8, 1, 3, 64]
