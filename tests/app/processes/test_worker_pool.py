"""WorkerPool: one app in several processes, on the real broker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException

from tailrace import ConfigurationError, ConsumerStateError, HandlerFailedError, TailraceError, WorkerPool
from tailrace.app.processes.supervised_process import failure_message, unpickled_error
from tailrace.app.processes.worker_process import label_output
from tailrace.observe.events import WorkerExited, WorkerStarted
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder
from tests.support.kip848_broker import QUICK
from tests.support.witness import Witness

SHOP = """
import os
from pathlib import Path

from tailrace import App, Record

LEDGER = Path(__file__).parent / "ledger"
app = App(group_id="{group}", bootstrap_servers="{servers}", auto_commit_interval_ms=200, heartbeat_interval_ms=200)


@app.handler("{topic}")
async def note(record: Record) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{{os.environ['TAILRACE_WORKER']}} {{record.partition}} {{record.offset}}\\n")
"""


HANG_ONCE = """    if not LEDGER.exists():
        LEDGER.touch()
        __import__("time").sleep(600)
"""


class Shop:
    """Module with an app whose handlers note their records."""

    def __init__(self, folder: Path, module: str) -> None:
        self.place, self._ledger = f"{module}:app", folder / "ledger"

    def noted(self) -> list[tuple[int, int, int]]:
        """Return which worker handled each offset of each partition."""
        if not self._ledger.exists():
            return []
        return [tuple(map(int, line.split())) for line in self._ledger.read_text().splitlines()]

    async def until(self, count: int) -> None:
        """Wait for a number of records, each noted once."""
        async with asyncio.timeout(30):
            while True:
                if len({(partition, offset) for _, partition, offset in self.noted()}) >= count:
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
def new_shop(tmp_path, monkeypatch):
    """Return a factory of modules that workers can import."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> Shop:
        module = f"shop_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(source)
        return Shop(tmp_path, module)

    return make


async def described(witness, group: str) -> dict[str, tuple[str, frozenset]]:
    """Return the name, member id and assignment of the group's static members on the broker."""
    found = await asyncio.to_thread(witness.admin.describe_consumer_groups([group])[group].result, 20)
    return {
        one.group_instance_id: (
            one.member_id,
            frozenset((tp.topic, tp.partition) for tp in one.assignment.topic_partitions),
        )
        for one in found.members
    }


async def shared(witness, group: str, members: int, partitions: int) -> dict[str, tuple[str, frozenset]]:
    """Wait until ``members`` members share all partitions, and return them as ``described`` does."""
    async with asyncio.timeout(30):
        while True:
            found = {}
            with contextlib.suppress(KafkaException):  # the coordinator of a group that does not exist yet
                found = await described(witness, group)
            shares = [share for _, share in found.values()]
            if len(found) == members and all(shares) and sum(map(len, shares)) == partitions:
                return found
            await asyncio.sleep(0.05)


async def fifty_each(witness, topic: str, shop: Shop, count: int) -> None:
    """Produce fifty records to each of four partitions, and wait until ``count`` records are noted."""
    for partition in range(4):
        witness.produce(topic, [b"x"] * 50, partition=partition)
    await shop.until(count)


async def test_workers_share_the_partitions_and_leave_with_the_pool(new_shop, new_topic, group, witness):
    """Each worker is a static member with a share of the partitions; stop() ends all processes and memberships."""
    topic = new_topic(4)
    shop = new_shop(SHOP.format(group=group, servers=witness.bootstrap_servers, topic=topic))

    async with WorkerPool(shop.place, workers=2) as pool:
        pids = pool.pids
        await pool.wait_ready()
        members = await shared(witness, group, 2, 4)
        await fifty_each(witness, topic, shop, 200)
        assert pool.health().status == "ok"

    assert pool.health().status == "stopping"

    assert sorted(map(len, (share for _, share in members.values()))) == [2, 2]
    assert {name.rpartition("-")[2] for name in members} == {"0", "1"}
    assert {worker for worker, _, _ in shop.noted()} == {0, 1}
    assert len(shop.noted()) == len(set(shop.noted())) == 200
    assert await witness.committed(group, topic, 4) == dict.fromkeys(range(4), 50)
    assert await described(witness, group) == {}
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert pool.pids == ()


async def test_a_killed_worker_is_restarted_and_affects_no_other(new_shop, new_topic, group, witness, recorder):
    """A killed worker is restarted with its name and partitions; other workers are not affected, no record is lost."""
    topic = new_topic(4)
    shop = new_shop(SHOP.format(group=group, servers=witness.bootstrap_servers, topic=topic))

    async with WorkerPool(shop.place, workers=2, hooks=[recorder]):
        before = await shared(witness, group, 2, 4)
        await fifty_each(witness, topic, shop, 200)
        (victim,) = {one.pid for one in recorder.of(WorkerStarted) if one.worker == 1}
        os.kill(victim, signal.SIGKILL)
        ended = await recorder.wait_for(WorkerExited)
        again = await recorder.wait_for(WorkerStarted, 3)
        await fifty_each(witness, topic, shop, 400)
        after = await described(witness, group)

    (kept,) = (name for name in before if name.endswith("-0"))
    assert ended.exit_code == -signal.SIGKILL
    assert again.worker == 1
    assert after[kept] == before[kept]
    assert {name: share for name, (_, share) in after.items()} == {name: share for name, (_, share) in before.items()}
    assert after.keys() == before.keys()
    late = Counter((partition, offset) for _, partition, offset in shop.noted() if offset >= 50)
    assert set(late.values()) == {1}


@pytest.fixture(scope="module")
def short_sessions():
    """Start a broker whose groups of the consumer protocol have a session of three seconds."""
    with KafkaServer(config={**QUICK, "group.consumer.session.timeout.ms": 3_000}) as server:
        server.create_topic("orders", 4)
        yield Witness(server.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "signals"),
    [
        ({"session_timeout_ms": 6_000}, [signal.SIGKILL, signal.SIGSTOP]),
        ({"group_protocol": "consumer"}, [signal.SIGKILL, signal.SIGKILL]),
    ],
    ids=["classic", "KIP-848"],
)
async def test_a_pool_outlives_the_death_of_each_worker(new_shop, group, short_sessions, options, signals):
    """Workers that are killed or freeze come back in both protocols, at the latest when their sessions are over."""
    recorder = EventRecorder()
    source = SHOP.format(group=group, servers=short_sessions.bootstrap_servers, topic="orders")
    source = source.replace(", heartbeat_interval_ms=200)", ", auto_offset_reset='latest')")
    shop = new_shop(source)

    async with WorkerPool(shop.place, workers=2, hooks=[recorder], **options) as pool:
        await pool.wait_ready()
        await fifty_each(short_sessions, "orders", shop, 200)
        for worker, number in enumerate(signals):
            victim = next(one.pid for one in recorder.of(WorkerStarted) if one.worker == worker)
            os.kill(victim, number)
            await recorder.wait_for(WorkerStarted, worker + 3)
            await fifty_each(short_sessions, "orders", shop, 200 * (worker + 2))
        assert pool.health().is_live

    assert [one.exit_code for one in recorder.of(WorkerExited)] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize(
    ("workers", "source", "message"),
    [
        (2, "app = 7\n", "is not an App"),
        (1, "app = (\n", "cannot be imported: SyntaxError"),
        (1, "import nowhere_at_all\n", "nowhere"),
    ],
)
async def test_a_configuration_error_ends_the_pool(new_shop, workers, source, message):
    """An error that would recur at every start is raised instead of retried, and no process is left."""
    shop = new_shop(source)
    pool = WorkerPool(shop.place, workers=workers)

    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=message):
            await pool.start()

    assert pool.pids == ()
    assert not pool.health().is_live


async def test_a_group_instance_id_without_worker_is_refused(new_shop, new_topic, group, witness):
    """A group_instance_id without {worker} is refused, since the workers would fence each other."""
    shop = new_shop(SHOP.format(group=group, servers=witness.bootstrap_servers, topic=new_topic()))

    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"add \{worker\} to it"):
            await WorkerPool(shop.place, workers=2, group_instance_id="billing").start()


async def test_on_failure_stop_stops_the_pool(new_shop, new_topic, group, witness):
    """run() raises the handler's error, and the other workers stop in an orderly way."""
    topic = new_topic(2)
    shop = new_shop(
        SHOP.format(group=group, servers=witness.bootstrap_servers, topic=topic)
        .replace("App(", "App(on_failure='stop', ")
        .replace("    with LEDGER", "    if record.value == b'poison':\n        raise ValueError\n    with LEDGER")
    )
    witness.produce(topic, [b"x"] * 10, partition=0)
    pool = WorkerPool(shop.place, workers=2)

    async def poison() -> None:
        await shop.until(10)
        witness.produce(topic, [b"poison"], partition=1)

    async with asyncio.timeout(60):
        poisoning = asyncio.create_task(poison())
        with pytest.raises(HandlerFailedError):
            await pool.run()
        await poisoning

    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_a_worker_that_keeps_dying_is_not_ready(new_shop, recorder):
    """A worker that keeps exiting is restarted after growing pauses; the pool is not ready, and can be stopped."""
    shop = new_shop("import os\nos._exit(3)\n")

    async with WorkerPool(shop.place, workers=1, hooks=[recorder]) as pool:
        await recorder.wait_for(WorkerExited, 3)
        health = pool.health()
        ready = asyncio.create_task(pool.wait_ready())
        await asyncio.sleep(0)

    with pytest.raises(ConsumerStateError, match="ended before its workers were ready"):
        await ready
    assert health.status == "starting"
    assert (health.is_live, health.is_ready) == (True, False)
    assert "3 times in a row" in health.checks[0].detail
    first, _, third = recorder.of(WorkerExited)[:3]
    assert first.exit_code == 3
    assert 0 < first.restarts_after_s < third.restarts_after_s


@pytest.mark.slow
async def test_a_worker_with_a_blocked_loop_is_replaced(new_shop, new_topic, group, witness, recorder):
    """While a worker sends no status the pool is not live; then the worker is killed and restarted."""
    topic = new_topic(2)
    source = SHOP.format(group=group, servers=witness.bootstrap_servers, topic=topic)
    shop = new_shop(source.replace("    with LEDGER", f"{HANG_ONCE}    with LEDGER"))
    options = {"session_timeout_ms": 6_000, "stop_timeout_ms": 1_000}

    async with WorkerPool(shop.place, workers=1, hooks=[recorder], **options) as pool:
        await pool.wait_ready()
        (hanging,) = pool.pids
        witness.produce(topic, [b"x"], partition=0)
        async with asyncio.timeout(40):
            while pool.health().is_live:  # noqa: ASYNC110 - health has no event
                await asyncio.sleep(0.05)
        (check,) = pool.health().checks
        ended = await recorder.wait_for(WorkerExited)
        await shop.until(1)

    assert "event loop has been blocked" in check.detail
    assert ended.exit_code == -signal.SIGKILL
    assert "event loop was blocked" in ended.error
    assert not psutil.pid_exists(hanging)


async def test_a_process_that_cannot_be_started_is_retried(new_shop, recorder, monkeypatch):
    """A process that cannot start, as system resources are exhausted, is started again, and the pool continues."""
    shop, start, refusals = new_shop("import os\nos._exit(3)\n"), asyncio.create_subprocess_exec, [1, 1]

    async def refuse_some(*args, **options):
        if recorder.of(WorkerExited) and refusals:
            refusals.pop()
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        return await start(*args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_some)
    async with WorkerPool(shop.place, workers=1, hooks=[recorder]) as pool:
        await recorder.wait_for(WorkerStarted, 2)
        assert pool.health().is_live

    _, first, second = recorder.of(WorkerExited)[:3]
    assert "no more processes" in first.error
    assert first.restarts_after_s < second.restarts_after_s


ENDS_BADLY = """
import asyncio, os
from pathlib import Path
from typing import Annotated
from tailrace import App, Depends

app = App(group_id="g", bootstrap_servers="127.0.0.1:1")


async def open_bank():
    (Path(__file__).parent / "ledger").write_text("0 0 0\\n")
    try:
        await asyncio.sleep(3600)
    finally:
        {last}


@app.handler("orders")
async def handle(value: bytes, bank: Annotated[object, Depends(open_bank, scope="app")]): ...
"""


@pytest.mark.parametrize(("last", "exits"), [("os._exit(3)", [(0, 3, None)]), ("pass", [])])
async def test_a_requested_stop_that_fails_is_reported(new_shop, recorder, last, exits):
    """A worker that fails while it stops, or has to be killed, is reported by an event, as records are unfinished."""
    shop = new_shop(ENDS_BADLY.format(last=last))
    pool = WorkerPool(shop.place, workers=1, hooks=[recorder])
    starting = asyncio.create_task(pool.start())
    await shop.until(1)
    await pool.stop()
    await starting

    assert [(one.worker, one.exit_code, one.restarts_after_s) for one in recorder.of(WorkerExited)] == exits


def test_a_worker_runs_with_its_output_closed(monkeypatch):
    """A worker starts if its output is closed, as under some service managers."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    label_output("worker 0 | ")

    assert (sys.stdout, sys.stderr) == (None, None)


class OddError(TailraceError):
    """User-defined error that can be pickled but not unpickled."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, {why}")


def test_an_error_of_an_unknown_class_is_reported_as_text():
    """An exception class that the parent cannot import is reported as text and does not end the pool."""
    failure = failure_message(OddError("the bank", "it is closed"))

    assert failure.error is not None
    assert str(unpickled_error(failure.error, failure.text)) == "OddError: the bank, it is closed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be a positive integer, not 0"),
        ({"workers": True}, "workers must be a positive integer, not True"),
        ({"workers": 1, "sesion_timeout_ms": 1}, "session_timeout_ms"),
        ({"workers": 1, "post_rebalance_callback": lambda *_: None}, "cannot be sent to another process"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        WorkerPool("shop:app", **arguments)


def test_the_name_of_the_app_is_checked():
    """The app must be named MODULE:APP, as for `tailrace run`."""
    with pytest.raises(ConfigurationError, match="write MODULE:APP"):
        WorkerPool("shop", workers=1)


async def test_a_pool_is_started_once(new_shop):
    """A second start raises; stop() before a start does nothing."""
    shop = new_shop("import os\nos._exit(3)\n")
    pool = WorkerPool(shop.place, workers=1)
    await pool.stop()

    async with pool:
        with pytest.raises(ConsumerStateError):
            await pool.start()


async def test_a_transactional_id_without_worker_is_refused(new_shop):
    """A transactional_id without {worker} is refused, since the workers would fence each other's producers."""
    options = 'group_id="g", bootstrap_servers="127.0.0.1:1", delivery="exactly_once", transactional_id="{hostname}"'
    shop = new_shop(f"from tailrace import App\n\napp = App({options})\n")

    with pytest.raises(ConfigurationError, match=r"add \{worker\} to it"):
        async with WorkerPool(shop.place, workers=2):
            pass


async def test_a_worker_resets_its_offsets_once(new_shop, new_topic, group, witness, recorder):
    """`reset_offset_on_start` applies to the first start: a restarted worker continues, and skips no record."""
    topic = new_topic()
    witness.produce(topic, [b"x"] * 5)
    shop = new_shop(SHOP.format(group=group, servers=witness.bootstrap_servers, topic=topic))
    anew = {"reset_offset_on_start": True, "auto_offset_reset": "latest"}

    async with WorkerPool(shop.place, workers=1, hooks=[recorder], **anew) as pool:
        await pool.wait_ready()
        async with asyncio.timeout(20):
            while await witness.committed(group, topic, 1) != {0: 5}:  # noqa: ASYNC110 - a committed offset sets no event
                await asyncio.sleep(0.05)
        os.kill(pool.pids[0], signal.SIGKILL)
        await recorder.wait_for(WorkerExited)
        witness.produce(topic, [b"x"] * 3)
        await shop.until(3)

    assert shop.noted() == [(0, 0, 5), (0, 0, 6), (0, 0, 7)]
