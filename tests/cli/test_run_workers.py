"""`tailrace run --workers` and `--reload`: worker processes and how they end."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.commands import COMMAND, environment

pytestmark = pytest.mark.slow

PARTITIONS = 4

SHOP = """
import asyncio
import os
from pathlib import Path

from tailrace import App, Record

LEDGER = Path(__file__).parent / "ledger"
PRICE = 1
billing = App(group_id="{topic}", heartbeat_interval_ms=200, stop_timeout_ms=20000)


@billing.handler("{topic}", order_by="partition")
async def note(record: Record) -> None:
    if record.offset == 0:
        print("begins with", record.partition)
    await asyncio.sleep({seconds})
    with LEDGER.open("a") as ledger:
        ledger.write(f"{{record.partition}} {{record.offset}} {{PRICE}}\\n")
    if record.offset == 0:
        print("first of", record.partition)
"""


ONE_AFTER_THE_OTHER = """
import time

try:
    (LEDGER.parent / f"first-{os.getppid()}").touch(exist_ok=False)
except FileExistsError:
    while not LEDGER.exists():
        time.sleep(0.01)
"""
"""The second worker of a pool is slower to start: it joins when the first one has handled something."""

DOES_NOT_END = """
    while billing.health().status != "stopping":
        await asyncio.sleep(0.02)
    print("is asked to end")
    await asyncio.sleep(600)
"""


class Shop:
    """Folder with a module of an app, its topic, and the ledger of its handlers."""

    def __init__(self, folder: Path, servers: str, topic: str) -> None:
        self.folder, self.servers, self.topic = folder, servers, topic
        self._producer = Producer({"bootstrap.servers": servers})

    def open(self, seconds: float = 0) -> None:
        (self.folder / "shop.py").write_text(SHOP.format(topic=self.topic, seconds=seconds))

    def produce(self, count: int) -> None:
        for number in range(count):
            self._producer.produce(self.topic, b"x", partition=number % PARTITIONS)
        assert self._producer.flush(20) == 0

    def noted(self) -> list[tuple[int, int, int]]:
        """Return partition, offset and price of each line of the ledger."""
        ledger = self.folder / "ledger"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.noted()) < count:
            assert time.monotonic() < deadline, self.noted()
            time.sleep(0.02)

    def shared(self, members: int) -> None:
        """Wait until the broker has this number of members with equal numbers of partitions."""
        admin, deadline = AdminClient({"bootstrap.servers": self.servers}), time.monotonic() + 60
        while True:
            shares: list[int] = []
            with suppress(KafkaException):  # the group does not exist yet
                found = admin.describe_consumer_groups([self.topic])[self.topic].result(20)
                shares = [len(one.assignment.topic_partitions) for one in found.members]
            if shares == [PARTITIONS // members] * members and found.state == ConsumerGroupState.STABLE:
                return
            assert time.monotonic() < deadline, shares
            time.sleep(0.05)

    def committed(self) -> dict[int, int]:
        witness = Consumer({"bootstrap.servers": self.servers, "group.id": self.topic})
        found = witness.committed([TopicPartition(self.topic, one) for one in range(PARTITIONS)], timeout=20)
        witness.close()
        return {one.partition: max(one.offset, 0) for one in found}


class Pool:
    """Running `tailrace run`, with its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output: list[str] = []
        self.seen: list[psutil.Process] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def until(self, words: str, count: int = 1) -> str:
        """Return the ``count``-th line that contains these words, counted from now on."""
        while (line := self._lines.get(timeout=60)) is not None:
            self.output.append(line)
            count -= words in line
            if count == 0:
                return line
        raise AssertionError("\n".join(self.output))

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._reading.join(timeout=30)
        while (line := self._lines.get(timeout=30)) is not None:
            self.output.append(line)
        return code

    def workers(self) -> list[psutil.Process]:
        self.seen = psutil.Process(self.process.pid).children()
        return self.seen


@pytest.fixture
def shop(tmp_path, kafka_server):
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(topic, PARTITIONS)
    return Shop(tmp_path, kafka_server.bootstrap_servers, topic)


@contextmanager
def running(shop: Shop, *arguments: str) -> Iterator[Pool]:
    with subprocess.Popen(
        [*COMMAND, "run", "shop:billing", "--set", f"bootstrap_servers={shop.servers}", *arguments],
        cwd=shop.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        pool = Pool(process)
        try:
            yield pool
        finally:
            process.kill()
            for worker in pool.seen:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            pool._reading.join(timeout=30)


def gone_within(processes: list[psutil.Process], seconds: float) -> bool:
    """Return True if no process is left after a time, not even as a zombie."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def test_sigterm_ends_all_workers_with_nothing_lost_and_nothing_repeated(shop):
    """After SIGTERM, the committed offsets match the handled records, and the next run handles the rest once."""
    shop.open(seconds=0.1)

    with running(shop, "--workers", "2") as pool:
        shop.shared(2)
        shop.produce(1_000)
        shop.until(20)
        workers = pool.workers()
        first = pool.end(signal.SIGTERM)
    handled = Counter(partition for partition, _, _ in shop.noted())
    committed = shop.committed()
    shop.open()
    with running(shop, "--workers", "2") as pool:
        shop.until(1_000)
        second = pool.end(signal.SIGTERM)

    assert (first, second) == (0, 0)
    assert len(workers) == 2
    assert not any(one.is_running() for one in workers)
    assert committed == {one: handled[one] for one in range(PARTITIONS)}
    assert 20 <= sum(handled.values()) < 1_000
    assert set(Counter(shop.noted()).values()) == {1}
    assert len(shop.noted()) == 1_000
    assert shop.committed() == dict.fromkeys(range(PARTITIONS), 250)


def test_sigterm_while_the_second_worker_joins_repeats_nothing(shop):
    """After SIGTERM during a rebalance, handled records are committed and not repeated."""
    shop.open(seconds=0.05)
    with (shop.folder / "shop.py").open("a") as module:
        module.write(ONE_AFTER_THE_OTHER)
    shop.produce(400)
    # The next start waits this long for a member that did not leave the group.
    arguments = ("--workers", "2", "--set", "session_timeout_ms=6000")

    with running(shop, *arguments) as pool:
        pool.until('reason="the group rebalances"')
        first = pool.end(signal.SIGTERM)
    handled = Counter(partition for partition, _, _ in shop.noted())
    committed = shop.committed()
    shop.open()
    with running(shop, *arguments) as pool:
        shop.until(400)
        second = pool.end(signal.SIGTERM)

    assert (first, second) == (0, 0)
    assert committed == {one: handled[one] for one in range(PARTITIONS)}
    assert 0 < sum(handled.values()) < 400
    assert set(Counter(shop.noted()).values()) == {1}


def test_output_of_workers_has_their_number(shop):
    """A line of a worker starts with its number, a line of the parent does not."""
    shop.open()
    shop.produce(PARTITIONS)

    with running(shop, "--workers", "2") as pool:
        shop.until(PARTITIONS)
        code = pool.end(signal.SIGINT)

    first = [line for line in pool.output if "first of" in line]
    assert code == 0
    assert len(first) == PARTITIONS
    assert all(line.startswith(("worker 0 | ", "worker 1 | ")) for line in first)
    assert all(line.startswith("worker ") for line in pool.output if "group joined" in line)
    assert not any(line.startswith("worker ") for line in pool.output if "worker started" in line)


def test_a_log_in_json_has_the_number_of_the_worker_as_a_field(shop):
    """Each line of a log in JSON is JSON with the number of the worker as a field."""
    shop.open()
    shop.produce(PARTITIONS)

    with running(shop, "--workers", "2", "--log-format", "json") as pool:
        shop.until(PARTITIONS)
        code = pool.end(signal.SIGINT)

    lines = [json.loads(line) for line in pool.output if line.startswith("{")]
    assert code == 0
    joined = {line["worker"] for line in lines if line["event"] == "group joined"}
    assert joined
    assert joined <= {0, 1}
    assert not any(" | " in line for line in pool.output)
    assert {line["worker"] for line in lines if line["event"] == "worker started"} == {0, 1}


def test_workers_end_when_the_parent_is_killed(shop):
    """After SIGKILL of the parent, workers finish their records, commit and exit."""
    shop.open()
    shop.produce(40)

    with running(shop, "--workers", "2") as pool:
        shop.until(40)
        workers = pool.workers()
        pool.process.kill()
        gone = gone_within(workers, 60)

    assert len(workers) == 2
    assert gone
    assert shop.committed() == dict.fromkeys(range(PARTITIONS), 10)


def test_a_second_signal_stops_all_workers_at_once(shop):
    """A second signal stops workers at once, without waiting for a handler that does not end."""
    (shop.folder / "shop.py").write_text(
        SHOP.format(topic=shop.topic, seconds=0).replace("    await asyncio.sleep(0)\n", DOES_NOT_END)
    )
    shop.produce(PARTITIONS)

    with running(shop, "--workers", "2", "--set", "stop_timeout_ms=100000") as pool:
        pool.until("begins with")
        workers = pool.workers()
        pool.process.send_signal(signal.SIGTERM)
        pool.until("is asked to end")
        assert pool.process.poll() is None
        began = time.monotonic()
        code = pool.end(signal.SIGTERM)
        gone = gone_within(workers, 20)

    assert code == -signal.SIGTERM
    assert time.monotonic() - began < 40
    assert gone


def test_a_hanging_worker_is_killed_after_stop_timeout_ms(shop):
    """A worker whose event loop is blocked is killed soon after stop_timeout_ms."""
    (shop.folder / "shop.py").write_text(
        SHOP.format(topic=shop.topic, seconds=0)
        .replace("stop_timeout_ms=20000", "stop_timeout_ms=500")
        .replace("    if record.offset", "    import time; print('hangs'); time.sleep(600)\n    if record.offset")
    )
    shop.produce(1)

    with running(shop, "--workers", "1") as pool:
        pool.until("hangs")
        workers = pool.workers()
        began = time.monotonic()
        pool.end(signal.SIGTERM)

    assert time.monotonic() - began < 40
    assert not any(one.is_running() for one in workers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:app", "--workers", "2"], "there is no module 'nowhere'"),
        (["json", "--workers", "2"], "write MODULE:APP"),
        (["json:loads", "--workers", "0"], "workers must be a positive integer"),
        (["json:loads", "--workers", "2", "--set", "session_timeout=5"], "session_timeout_ms"),
    ],
)
def test_an_invalid_app_or_option_is_one_error(arguments, message):
    """An invalid app or option is one error line and exit code 1, without restarts."""
    done = subprocess.run(
        [*COMMAND, "run", *arguments, "--log-level", "error"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_a_changed_source_file_restarts_the_workers(shop):
    """With --reload, a changed file restarts the workers, and a broken one waits for the next change."""
    shop.open()
    source = shop.folder / "shop.py"

    with running(shop, "--reload") as pool:
        pool.until("group joined")
        shop.produce(PARTITIONS)
        shop.until(PARTITIONS)
        good = source.read_text()
        source.write_text("billing = None\n")
        pool.until("is not an App")
        source.write_text(good.replace("PRICE = 1", "PRICE = 2"))
        os.utime(source, (time.time() + 5, time.time() + 5))  # .pyc files store the time in seconds
        pool.until("group joined")
        shop.produce(PARTITIONS)
        shop.until(2 * PARTITIONS)
        code = pool.end(signal.SIGTERM)

    assert code == 0
    assert sorted(shop.noted()) == sorted((p, o, o + 1) for p in range(PARTITIONS) for o in range(2))
