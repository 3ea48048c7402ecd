"""A killed process repeats only records that it had not finished or not committed.

Handlers log the start and the end of each record for comparison.
"""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections import Counter

import pytest

from tailrace import App, Record
from tailrace.core.offset_map import decode_metadata
from tailrace.observe.events import FinishedRecordsSkipped, PartitionsAssigned
from tailrace.testing import KafkaServer
from tests.support.commands import environment
from tests.support.consumer_group import until

PROGRAM = """
    import asyncio, os, random, sys, threading, tailrace

    # Ends this process when the test ends, which closes the pipe.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(3)), daemon=True).start()

    servers, group, topic, path, stuck, session_ms = sys.argv[1:]
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    chance = random.Random(3)
    options = {
        "bootstrap_servers": servers, "group_id": group, "group_instance_id": "one", "auto_commit_interval_ms": 40,
        "session_timeout_ms": int(session_ms), "heartbeat_interval_ms": 300,
    }

    async def work(record, when_stuck=lambda: None):
        os.write(ledger, f"begin {record.partition} {record.offset}\\n".encode())
        if stuck and record.key == stuck.encode():
            when_stuck()
            await asyncio.Event().wait()
        await asyncio.sleep(chance.random() / 100)
        os.write(ledger, f"end {record.partition} {record.offset}\\n".encode())
"""

APP = """
    app = tailrace.App(**options)

    @app.handler(topic, order_by="key", concurrency=32)
    async def handle(record: tailrace.Record):
        await work(record)

    asyncio.run(app.run())
"""

BY_HAND = """
    async def main():
        room = asyncio.Semaphore(32)
        async with tailrace.Consumer(topic, ack="manual", **options) as consumer, asyncio.TaskGroup() as tasks:

            async def handle(record):
                await work(record, room.release)
                consumer.ack(record)
                room.release()

            async for record in consumer:
                await room.acquire()
                tasks.create_task(handle(record))

    asyncio.run(main())
"""

KEYS = [b"key %d" % number for number in range(10)]


class Ledger:
    """Lines that the handlers of a process have written."""

    def __init__(self, path) -> None:
        self.path = path

    def of(self, word: str) -> Counter[tuple[int, int]]:
        """Count the starts, or the ends, of each record."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        parts = [line.split() for line in lines]
        return Counter((int(partition), int(offset)) for kind, partition, offset in parts if kind == word)


class Process:
    """Process that handles records until it is killed."""

    def __init__(self, kafka_server: KafkaServer, program: str, group: str, topic: str, ledger: Ledger) -> None:
        self._arguments = kafka_server.bootstrap_servers, group, topic, str(ledger.path)
        self._program = textwrap.dedent(PROGRAM + program)
        self.ledger = ledger
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, stuck: str = "", *, session_ms: int = 45_000) -> None:
        """Start the process, replacing a killed one of the same name; records with the key ``stuck`` never end."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self._program, *self._arguments, stuck, str(session_ms)),
            stdin=asyncio.subprocess.PIPE,
            env=environment(),
        )

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
            # The transport of the process's pipe is closed in the next loop iteration.
            await asyncio.sleep(0)


async def finished(witness, group, topic, partitions):
    """Return the records that are finished according to the group's commits on the broker."""
    done = set()
    for partition, offset in (await witness.committed(group, topic, partitions)).items():
        done |= {(partition, one) for one in range(offset)}
        found = decode_metadata(await witness.metadata(group, topic, partition), offset).offset_map
        if found is not None:
            done |= {(partition, one) for one in range(offset, found.limit) if found.is_finished(one)}
    return done


async def wait_for_a_map(witness, group, topic, count):
    """Wait until the commits list ``count`` finished records after a stuck one."""
    async with asyncio.timeout(60):
        while len(await finished(witness, group, topic, 2)) < count:  # noqa: ASYNC110 - a committed offset sets no event
            await asyncio.sleep(0.05)


@pytest.fixture(params=[APP, BY_HAND], ids=["app", "by hand"])
async def process(request, kafka_server, new_topic, *, witness, group, tmp_path):
    """Process that handles 600 records of ten keys in two partitions."""
    topic = new_topic(2)
    for partition in range(2):
        keys = [KEYS[number % 10] for number in range(300)]
        witness.produce(topic, (b"%d" % n for n in range(300)), partition=partition, keys=keys)
    made = Process(kafka_server, request.param, group, topic, Ledger(tmp_path / "ledger"))
    made.topic = topic
    yield made
    await made.kill()


async def test_a_killed_process_repeats_only_uncommitted_records(process, witness, group):
    """After SIGKILL with one key stuck, committed records are not handled again, and all other records are."""
    ledger = process.ledger
    await process.start(stuck="key 3")
    await until(lambda: len(ledger.of("end")) > 150, 60)
    await process.kill()
    ended, committed = ledger.of("end"), await finished(witness, group, process.topic, 2)

    assert committed <= ended.keys()
    ledger.path.unlink()
    await process.start()
    # The broker may have received a later commit after the read.
    await wait_for_a_map(witness, group, process.topic, 600)
    await process.kill()

    again = ledger.of("end")
    assert len(ended.keys() | again.keys()) == 600
    assert not again.keys() & committed
    assert set(again.values()) == {1}


async def test_an_offset_map_survives_several_kills(process, witness, group):
    """A restart handles only the stuck records, because the offset map lists all records after them."""
    ledger = process.ledger
    await process.start(stuck="key 3")
    await wait_for_a_map(witness, group, process.topic, 540)
    await process.kill()
    ledger.path.unlink()
    await process.start()
    stuck = {(partition, offset) for partition in range(2) for offset in range(3, 300, 10)}
    await until(lambda: len(ledger.of("end")) == 60, 60)
    await wait_for_a_map(witness, group, process.topic, 600)

    assert ledger.of("begin") == ledger.of("end") == Counter(stuck)


async def test_a_live_member_handles_only_the_unfinished_records(process, witness, group, kafka_server, recorder):
    """A live member takes over the partitions of a killed one, and handles only the records that were not finished."""
    handled: Counter[tuple[int, int]] = Counter()
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, hooks=[recorder])
    app.configure(heartbeat_interval_ms=300, auto_commit_interval_ms=40)

    @app.handler(process.topic, order_by="key")
    async def handle(record: Record):
        handled[record.partition, record.offset] += 1

    await process.start(stuck="key 3", session_ms=3_000)
    await wait_for_a_map(witness, group, process.topic, 540)
    async with app:
        await recorder.wait_for(PartitionsAssigned)
        assert len(await witness.members(group)) == 2
        await process.kill()
        await recorder.wait_for(PartitionsAssigned, where=lambda event: len(event.kept | event.added) == 2)
        await until(lambda: len(handled) == 60)
        skipped = await recorder.wait_for(FinishedRecordsSkipped, 2)

    assert handled == Counter((partition, offset) for partition in range(2) for offset in range(3, 300, 10))
    assert skipped.records > 0
    assert await witness.committed(group, process.topic, 2) == {0: 300, 1: 300}
