"""Each metric of a running worker, compared with Kafka's tools, the broker's files, requests, the clock or counts.

A metric of the table without a witness fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import tailrace
from tailrace.embedded.cluster import free_ports
from tailrace.error_codes import ErrorCode
from tailrace.integrations.prometheus import exposition
from tailrace.observe.events import CorruptBatchSkipped, PartitionBlocked
from tailrace.observe.metrics import METRICS
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest
from tailrace.protocol.records import FetchRequest
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tailrace.testing import KafkaServer
from tests.support.admin_tools import KafkaTool
from tests.support.commands import COMMAND, environment
from tests.support.event_recorder import EventRecorder
from tests.support.transaction_faults import with_code

MARKS = (pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("metric witnesses"))


def runs_an_app(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that shares the running app with others."""
    for mark in MARKS:
        test = mark(test)
    return test


HOUR_S = 3_600
RECORDS = {"charges": 200, "parcels": 100, "letters": 20, "clicks": 100, "parts": 40, "mail": 30, "hoards": 200}
HANDLERS = {
    "charges": "charge",
    "parcels": "ship",
    "letters": "answer",
    "clicks": "count",
    "parts": "wait",
    "mail": "pick",
    "claims": "refuse",
    "leftovers": "halt",
    "commands": "obey",
}
REQUEST_TIMEOUT_S = 3
"""Time for which the app repeats a refused commit."""


class Scrape:
    """Samples of one scrape, and the time at which it was made."""

    def __init__(self, url: str) -> None:
        self.began_at = time.time()
        self.text = httpx.get(f"{url}/metrics", timeout=20).raise_for_status().text
        self.ended_at = time.time()
        self.ready, self.live = (httpx.get(f"{url}{path}", timeout=20).status_code for path in ("/readyz", "/livez"))
        self.samples = [one for family in text_string_to_metric_families(self.text) for one in family.samples]

    def of(self, name: str, **labels: str) -> float:
        """Return the value of the only sample with these labels."""
        (value,) = self.all(name, **labels)
        return value

    def all(self, name: str, **labels: str) -> list[float]:
        """Return the values of all samples with these labels."""
        return [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]


class Run:
    """Running command with its endpoints and the calls that its handlers have recorded."""

    def __init__(self, server: KafkaServer, folder: Path, name: str, *arguments: str) -> None:
        (port,) = free_ports(1)
        self.url, self._calls = f"http://127.0.0.1:{port}", folder / "calls.jsonl"
        self.began_at = time.time()
        self.past: list[str] | None = None
        self.log = folder / f"{arguments[0].partition(':')[2]}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "run", *arguments, "--http-port", str(port), "--http-host", "127.0.0.1"],
                cwd=Path(__file__).parent,
                env=environment(
                    TAILRACE_BOOTSTRAP_SERVERS=server.bootstrap_servers, WITNESS_FOLDER=str(folder), WITNESS_NAME=name
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def calls(self, handler: str, what: str) -> list[dict[str, Any]]:
        """Return the beginnings or ends of a handler's calls."""
        lines = self._lines() if self.past is None else self.past
        return [one for one in map(json.loads, lines) if one["handler"] == handler and one["what"] == what]

    def freeze(self) -> None:
        """Ignore the calls from now on."""
        self.past = self._lines()

    def _lines(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def until(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        """Wait for a condition that no event announces."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()[-5_000:]
            time.sleep(0.05)

    def finds(self, condition: Callable[[Scrape], object]) -> bool:
        """Return True if the server answers, and a scrape meets the condition."""
        try:
            return bool(condition(Scrape(self.url)))
        except (httpx.ConnectError, httpx.HTTPStatusError):  # starts, or has no answer yet
            return False

    def kill(self) -> None:
        """End the command and its worker processes at once."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Facts(NamedTuple):
    """Samples of the scraped app, and what its witnesses have recorded."""

    name: str
    run: Run
    starting: Scrape
    blocked: Scrape
    """While the event loop is blocked."""
    blocked_s: tuple[float, float]
    """Least and greatest time for which the loop can have been blocked then."""
    silent: Scrape
    """While the broker does not answer heartbeats."""
    silent_s: float
    """Time since the broker last answered a heartbeat, at the beginning of the scrape."""
    busy: Scrape
    """Once all that can be handled is handled."""
    rows: dict[tuple[str, str], dict[str, str]]
    """Rows of Kafka's tool, by topic (without the prefix) and partition."""
    fetches: tuple[int, int]
    """Number of answers to fetches before and after the scrape."""
    commits: dict[str, int]
    """Number of commit requests, by group."""
    joins: dict[str, int]
    """Number of assignments, by group."""
    log_bytes: dict[str, int]
    """Size of each topic's log on the broker's disk."""
    stalled: tuple[float, float, float]
    """Metric of the transactions, and the least and greatest time for which none can have been committed."""
    wire_bytes: int
    """Size of the batches in the answers to fetches of the first group."""
    last_fetches: list[Any]
    """Last requests for records on the wire."""
    refused_s: float
    """Time for which the broker has refused commits."""

    def records(self, topic: str) -> int:
        """Return the number of records in a partition, by Kafka's tool."""
        return int(self.rows[topic, "0"]["LOG-END-OFFSET"])

    def handler(self, metric: str, handler: str) -> float:
        """Return a metric of a handler."""
        return self.busy.of(metric, handler=handler)

    def partition(self, metric: str, topic: str) -> float:
        """Return a metric of a topic's only partition."""
        return self.busy.of(metric, topic=f"{self.name}-{topic}", partition="0")

    def ended(self, handler: str) -> int:
        """Return the number of calls that have ended."""
        return len(self.run.calls(handler, "end"))

    def begun_records(self, handler: str) -> int:
        """Return the number of records whose calls have begun."""
        return sum(one["records"] for one in self.run.calls(handler, "begin"))


def produce(server: KafkaServer, topic: str, values: list[bytes], since: float | None = None, **more: Any) -> None:
    """Produce to the only partition of a topic; with ``since``, that is the records' timestamp."""
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, timestamp=int((since or time.time()) * 1000), **more)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    with KafkaServer(proxied=True) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("witnessed")


@contextmanager
def running(*arguments: Any) -> Iterator[Run]:
    run = Run(*arguments)
    try:
        run.until(lambda: run.finds(lambda _: True))
        yield run
    finally:
        run.kill()


@pytest.fixture(scope="module")
def facts(server, folder) -> Iterator[Facts]:
    """Run the app through all situations of its metrics: work, failures, refusals, silence and a blocked loop."""
    name = f"w-{uuid.uuid4().hex[:8]}"
    for topic in (*HANDLERS, "hoards", "payments", "receipts"):
        server.create_topic(f"{name}-{topic}", 1)
    fill(server, name)
    stalled = stall(server, folder, name)
    tool = KafkaTool(server.bootstrap_servers)
    with (
        server.proxy.hold_answer(JoinGroupRequest, times=None) as held,
        running(server, folder, name, "witnessed_app:till") as run,
    ):
        run.until(lambda: held.count >= 1)
        starting = Scrape(run.url)
        held.end()
        run.until(lambda: finished(run))
        refused_s = refuse_commits(server, run, name)
        produce(server, f"{name}-leftovers", [b"1"] * 5)
        silent, silent_s = silence(server, run)
        blocked, blocked_s = block(server, run, folder, name)
        rows = settled(tool, name)
        before = len(server.proxy.answers(FetchRequest, client_id=name))
        busy = Scrape(run.url)
        fetches = (before, len(server.proxy.answers(FetchRequest, client_id=name)))
        run.freeze()
        yield Facts(
            name,
            run,
            starting,
            blocked,
            blocked_s,
            silent,
            silent_s,
            busy,
            rows,
            fetches,
            commits_on_the_wire(server, name),
            joins_on_the_wire(server, name),
            {
                log.parent.name.removeprefix(f"{name}-").rpartition("-")[0]: log.stat().st_size
                for log in server.nodes[0].folder.rglob(f"{name}-*/*.log")
            },
            stalled,
            small_batches_on_the_wire(server, name),
            server.proxy.requests(FetchRequest, client_id=name)[-8:],
            refused_s,
        )


def fill(server: KafkaServer, name: str) -> None:
    """Produce the records that are there before the start, and commit with metadata of another client."""
    for topic, count in RECORDS.items():
        values = [b"%d" % n for n in range(count)]
        match topic:
            case "parts":
                produce(server, f"{name}-{topic}", values, time.time() - HOUR_S)
            case "hoards":
                produce(server, f"{name}-{topic}", [os.urandom(70_000) for _ in values])
            case "mail":
                produce(server, f"{name}-{topic}", values[:10], key=b"ours")
                produce(server, f"{name}-{topic}", values[10:], key=b"theirs")
            case _:
                produce(server, f"{name}-{topic}", values)
    produce(server, f"{name}-claims", [b"1", b"2", b"3"])
    produce(server, f"{name}-commands", [b"pause"])
    other = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": name})
    other.commit(offsets=[TopicPartition(f"{name}-charges", 0, 0, metadata="theirs")], asynchronous=False)
    other.close()


def finished(run: Run) -> bool:
    """Return True if the handlers have finished all work that needs no command."""
    done = {"charge": 205, "answer": 20, "count": 100, "pick": 10, "refuse": 1, "obey": 1}
    return all(len(run.calls(handler, "end")) >= count for handler, count in done.items()) and (
        sum(one["records"] for one in run.calls("ship", "end")) == RECORDS["parcels"]
        and (len(run.calls("wait", "begin")), len(run.calls("hoard", "begin"))) == (2, 1)
    )


def refuse_commits(server: KafkaServer, run: Run, name: str) -> float:
    """Let the broker refuse commits until one has failed, and return the duration."""
    code = with_code(ErrorCode.REBALANCE_IN_PROGRESS)
    with server.proxy.edit_answer(OffsetCommitRequest, code, times=None) as refusal:
        produce(server, f"{name}-mail", [b"99"], key=b"ours")
        run.until(lambda: refusal.count > 0)
        began_at = time.monotonic()
        time.sleep(REQUEST_TIMEOUT_S + 0.5)
        return time.monotonic() - began_at


def silence(server: KafkaServer, run: Run) -> tuple[Scrape, float]:
    """Delay the responses to heartbeats, and scrape after more than a second."""
    with server.proxy.hold_answer(HeartbeatRequest, times=None) as held:
        run.until(lambda: held.count >= 1)
        since = time.time()
        time.sleep(1.5)
        silent_s = time.time() - since
        return Scrape(run.url), silent_s


def block(server: KafkaServer, run: Run, folder: Path, name: str) -> tuple[Scrape, tuple[float, float]]:
    """Let a handler block the event loop, and scrape meanwhile."""
    produce(server, f"{name}-commands", [b"block"])
    run.until(lambda: len(run.calls("obey", "begin")) == 2)
    began_at = run.calls("obey", "begin")[-1]["at"]
    time.sleep(1)
    scrape = Scrape(run.url)
    (folder / "free").touch()
    run.until(lambda: len(run.calls("obey", "end")) == 2)
    return scrape, (scrape.began_at - began_at, scrape.ended_at - began_at)


def stall(server: KafkaServer, folder: Path, name: str) -> tuple[float, float, float]:
    """Run the transactional app while the broker refuses its offsets."""
    with running(server, folder, name, "witnessed_app:bank") as run:
        run.until(lambda: run.finds(lambda found: found.ready == 200))
        refused = with_code(ErrorCode.UNKNOWN_MEMBER_ID)
        with server.proxy.edit_answer(TxnOffsetCommitRequest, refused, times=None) as refusal:
            began_at = time.time()
            produce(server, f"{name}-payments", [b"1"])
            run.until(lambda: refusal.count >= 1)
            refused_at = time.time()
            assert Scrape(run.url).of("tailrace_group_transactions_stalled_seconds") == 0
            time.sleep(3.5)
            scrape = Scrape(run.url)
        value = scrape.of("tailrace_group_transactions_stalled_seconds")
        run.until(lambda: run.finds(lambda found: found.of("tailrace_group_transactions_stalled_seconds") == 0))
        return value, scrape.began_at - refused_at - 0.5, scrape.ended_at - began_at


def settled(tool: KafkaTool, name: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of Kafka's tool for the groups of the app, once the last commit is in them."""
    for _ in range(10):
        found = [*tool.rows("--describe", "--group", name), *tool.rows("--describe", "--group", f"{name}-hoard")]
        rows = {(row["TOPIC"].removeprefix(f"{name}-"), row["PARTITION"]): row for row in found}
        if rows["commands", "0"]["LAG"] == "0":
            break
    return rows


def commits_on_the_wire(server: KafkaServer, name: str) -> dict[str, int]:
    """Return the number of commits that the app has sent, by group."""
    sent = [one.message.group_id for one in server.proxy.requests(OffsetCommitRequest, client_id=name)]
    return {group: sent.count(group) for group in (name, f"{name}-hoard")}


def small_batches_on_the_wire(server: KafkaServer, name: str) -> int:
    """Return the size of all batches in fetch responses, except those too large to be recorded."""
    answers = [one.message for one in server.proxy.answers(FetchRequest, client_id=name)]
    return sum(len(one.records or b"") for answer in answers if answer is not None for one in answer.partitions)


def joins_on_the_wire(server: KafkaServer, name: str) -> dict[str, int]:
    """Return the number of generations of the app's joins by group."""
    frames = server.proxy.answers(JoinGroupRequest, client_id=name)
    accepted = {(one.connection, one.correlation_id) for one in frames if one.message.error_code == 0}
    sent = [
        one.message.group_id
        for one in server.proxy.requests(JoinGroupRequest, client_id=name)
        if (one.connection, one.correlation_id) in accepted
    ]
    return {group: sent.count(group) for group in (name, f"{name}-hoard")}


# ---- witnesses -----------------------------------------------------------------------------------------------------

WITNESSES: dict[str, Callable[[Facts], None]] = {}


def witness(metric: str) -> Callable[[Callable[[Facts], None]], Callable[[Facts], None]]:
    """Register a function as the witness of a metric."""

    def declare(function: Callable[[Facts], None]) -> Callable[[Facts], None]:
        assert metric not in WITNESSES
        WITNESSES[metric] = function
        return function

    return declare


@witness("tailrace_handler_records_total")
def records(facts: Facts) -> None:
    """Compare with the number of produced records minus the failed ones."""
    handled = {name: facts.handler("tailrace_handler_records_total", name) for name in HANDLERS.values()}
    mail = facts.records("mail") - 20
    assert handled == {
        "charge": 198,
        "ship": 100,
        "answer": 17,
        "count": 90,
        "wait": 0,
        "pick": mail,
        "refuse": 0,
        "halt": 0,
        "obey": 2,
    }


@witness("tailrace_handler_batches_total")
def batches(facts: Facts) -> None:
    """Compare with the calls of the only batch handler."""
    assert facts.busy.all("tailrace_handler_batches_total") == [facts.ended("ship")]


@witness("tailrace_handler_duration_seconds")
def durations(facts: Facts) -> None:
    """Compare with the number and the durations of the calls that the handlers recorded."""
    for handler in ("charge", "ship", "answer", "count", "pick", "refuse", "obey"):
        calls = facts.run.calls(handler, "end")
        measured_s = sum(one["took_s"] for one in calls)
        total_s = facts.handler("tailrace_handler_duration_seconds_sum", handler)
        assert facts.handler("tailrace_handler_duration_seconds_count", handler) == len(calls), handler
        # Failures are logged between calls that are measured together.
        most_s = calls[-1]["at"] - facts.run.calls(handler, "begin")[0]["at"] + 0.1
        assert measured_s <= total_s * 1.001 <= max(most_s, measured_s * 1.5), handler
    # The call that blocked the loop is not in the buckets of shorter durations.
    short = facts.busy.of("tailrace_handler_duration_seconds_bucket", handler="obey", le="1.0")
    assert short == sum(one["took_s"] <= 1 for one in facts.run.calls("obey", "end")) == 1


@witness("tailrace_handler_in_flight")
def in_flight(facts: Facts) -> None:
    """Compare with the calls that have started and not ended."""
    for handler in ("wait", "hoard", "charge", "ship"):
        open_calls = facts.begun_records(handler) - sum(one["records"] for one in facts.run.calls(handler, "end"))
        assert facts.handler("tailrace_handler_in_flight", handler) == open_calls


@witness("tailrace_handler_waiting")
def waiting(facts: Facts) -> None:
    """Compare with the records of the topic whose calls have not started, some of which are not decoded yet."""
    left = facts.records("parts") - facts.begun_records("wait")
    assert left / 2 < facts.handler("tailrace_handler_waiting", "wait") <= left
    assert facts.handler("tailrace_handler_waiting", "charge") == facts.records("charges") - 200 == 0


@witness("tailrace_handler_concurrency")
def concurrency(facts: Facts) -> None:
    """Compare with the number of started calls of handlers that never return."""
    assert facts.handler("tailrace_handler_concurrency", "wait") == len(facts.run.calls("wait", "begin")) == 2
    assert facts.handler("tailrace_handler_concurrency", "hoard") == len(facts.run.calls("hoard", "begin")) == 1


@witness("tailrace_handler_paused")
def paused(facts: Facts) -> None:
    """Compare with the one handler that recorded no call, although its topic has records."""
    found = {name: facts.handler("tailrace_handler_paused", name) for name in HANDLERS.values()}
    assert found == {name: float(name == "halt") for name in HANDLERS.values()}
    assert (facts.records("leftovers"), facts.run.calls("halt", "begin")) == (5, [])


@witness("tailrace_handler_failures_total")
def failures(facts: Facts) -> None:
    """Compare with the failures that the handlers raise on purpose."""
    found = {name: facts.handler("tailrace_handler_failures_total", name) for name in HANDLERS.values()}
    refused = len(facts.run.calls("refuse", "end"))
    assert {name: count for name, count in found.items() if count} == {
        "charge": 7,
        "answer": 3,
        "count": 10,
        "refuse": refused,
    }


@witness("tailrace_handler_retries_total")
def retries(facts: Facts) -> None:
    """Compare with the number of recorded calls minus that of the records."""
    assert facts.handler("tailrace_handler_retries_total", "charge") == facts.ended("charge") - facts.records("charges")
    assert facts.handler("tailrace_handler_retries_total", "count") == 0


@witness("tailrace_handler_delayed_total")
def delayed(facts: Facts) -> None:
    """Compare with the end offset of the retry topic."""
    (count,) = [int(row["LOG-END-OFFSET"]) for (topic, _), row in facts.rows.items() if topic.startswith("letters.")]
    assert facts.handler("tailrace_handler_delayed_total", "answer") == count == 3


@witness("tailrace_handler_dead_letters_total")
def dead_letters(facts: Facts) -> None:
    """Compare with the number of records in the dead-letter topic, read by librdkafka."""
    reader = Consumer({"bootstrap.servers": os.environ["WITNESS_SERVER"], "group.id": "reader"})
    _, count = reader.get_watermark_offsets(TopicPartition(f"{facts.name}-charges.dead", 0), 20)
    reader.close()
    assert facts.handler("tailrace_handler_dead_letters_total", "charge") == count == 2


@witness("tailrace_handler_skipped_total")
def skipped(facts: Facts) -> None:
    """Compare with a tenth of a hundred records, all of which are committed according to Kafka's tool."""
    assert facts.handler("tailrace_handler_skipped_total", "count") == 10
    assert facts.rows["clicks", "0"]["LAG"] == "0"


@witness("tailrace_group_blocked_records")
def blocked_records(facts: Facts) -> None:
    """Compare with the one failed record of a topic without a commit according to Kafka's tool."""
    assert facts.busy.of("tailrace_group_blocked_records", group=facts.name) == 1
    assert facts.rows["claims", "0"]["CURRENT-OFFSET"] in {"-", "0"}


@witness("tailrace_group_unmatched_total")
def unmatched(facts: Facts) -> None:
    """Compare with the records of the key that no handler selects."""
    assert facts.busy.of("tailrace_group_unmatched_total", group=facts.name) == RECORDS["mail"] - 10


@witness("tailrace_group_transactions_stalled_seconds")
def stalled(facts: Facts) -> None:
    """Compare with the time since the broker refused the first transaction."""
    value, least_s, most_s = facts.stalled
    assert max(3, least_s) <= value <= most_s


@witness("tailrace_partition_position")
def position(facts: Facts) -> None:
    """Compare with the end offset of topics whose records have all started."""
    for topic in ("charges", "parcels", "letters", "clicks", "mail", "commands"):
        assert facts.partition("tailrace_partition_position", topic) == facts.records(topic)
    assert facts.partition("tailrace_partition_position", "leftovers") == 0


@witness("tailrace_partition_committed")
def committed(facts: Facts) -> None:
    """Compare with CURRENT-OFFSET of Kafka's tool, without partitions where it is "-"."""
    found = {one.labels["topic"]: one.value for one in facts.busy.samples if one.name == "tailrace_partition_committed"}
    expected = {
        f"{facts.name}-{topic}": float(row["CURRENT-OFFSET"])
        for (topic, _), row in facts.rows.items()
        if row["CURRENT-OFFSET"] != "-"
    }
    assert found == expected
    assert len(found) >= 6


@witness("tailrace_partition_end")
def end(facts: Facts) -> None:
    """Compare with LOG-END-OFFSET of Kafka's tool."""
    for topic, _ in facts.rows:
        assert facts.partition("tailrace_partition_end", topic) == facts.records(topic), topic


@witness("tailrace_partition_lag")
def lag(facts: Facts) -> None:
    """Compare with LAG of Kafka's tool, and without a commit with the number of records."""
    for (topic, _), row in facts.rows.items():
        expected = facts.records(topic) if row["LAG"] == "-" else int(row["LAG"])
        assert facts.partition("tailrace_partition_lag", topic) == expected, topic


@witness("tailrace_partition_work_lag")
def work_lag(facts: Facts) -> None:
    """Compare with the number of records that the handlers leave unfinished on purpose."""
    expected = {"charges": 0, "parts": 40, "claims": 3, "leftovers": 5, "hoards": 200, "commands": 0}
    assert {topic: facts.partition("tailrace_partition_work_lag", topic) for topic in expected} == expected


@witness("tailrace_partition_lag_seconds")
def lag_seconds(facts: Facts) -> None:
    """Compare with the time since the timestamp of the oldest record, which is an hour before the start."""
    age_s = facts.partition("tailrace_partition_lag_seconds", "parts")
    assert (
        HOUR_S + facts.busy.began_at - facts.run.began_at - 1
        <= age_s
        <= HOUR_S + facts.busy.ended_at - facts.run.began_at + 120
    )
    assert facts.partition("tailrace_partition_lag_seconds", "charges") == 0


@witness("tailrace_partition_paused")
def partition_paused(facts: Facts) -> None:
    """Check that a paused handler pauses no partition; another test pauses one."""
    assert set(facts.busy.all("tailrace_partition_paused")) == {0.0}


@witness("tailrace_partition_blocked")
def partition_blocked(facts: Facts) -> None:
    """Check that no partition waits at a batch; another test has one that does."""
    assert set(facts.busy.all("tailrace_partition_blocked")) == {0.0}


@witness("tailrace_consumer_skipped_batches_total")
def skipped_batches(facts: Facts) -> None:
    """Check that no batch was skipped; another test skips one."""
    assert set(facts.busy.all("tailrace_consumer_skipped_batches_total")) == {0.0}


@witness("tailrace_consumer_assigned_partitions")
def assigned(facts: Facts) -> None:
    """Compare with the rows of Kafka's tool that have a member."""
    for group in (facts.name, f"{facts.name}-hoard"):
        rows = [row for row in facts.rows.values() if row["GROUP"] == group and row["CONSUMER-ID"] != "-"]
        assert facts.busy.of("tailrace_consumer_assigned_partitions", group=group) == len(rows) > 0


@witness("tailrace_consumer_queued_records")
def queued(facts: Facts) -> None:
    """Compare with the number of records whose calls have not started, as an upper limit."""
    left = facts.records("parts") - facts.begun_records("wait") + facts.records("claims") - 1
    assert 0 <= facts.busy.of("tailrace_consumer_queued_records", group=facts.name) <= left


@witness("tailrace_consumer_buffered_bytes")
def buffered(facts: Facts) -> None:
    """Compare with the size of the broker's log of a topic of which one record is in work."""
    size = facts.busy.of("tailrace_consumer_buffered_bytes", group=f"{facts.name}-hoard")
    assert facts.log_bytes["hoards"] / 2 < size <= facts.log_bytes["hoards"]
    assert facts.busy.of("tailrace_consumer_buffered_bytes", group=facts.name) <= facts.wire_bytes


@witness("tailrace_consumer_reserved_bytes")
def reserved(facts: Facts) -> None:
    """Compare with max_bytes of the last fetch requests."""
    limits = {float(one.message.max_bytes) for one in facts.last_fetches}
    assert facts.busy.of("tailrace_consumer_reserved_bytes", group=facts.name) in limits


@witness("tailrace_consumer_fetched_records_total")
def fetched_records(facts: Facts) -> None:
    """Compare with the sum of the end offsets of the group's topics by Kafka's tool."""
    ends = sum(int(row["LOG-END-OFFSET"]) for row in facts.rows.values() if row["GROUP"] == facts.name)
    assert facts.busy.of("tailrace_consumer_fetched_records_total", group=facts.name) == ends


@witness("tailrace_consumer_fetched_bytes_total")
def fetched_bytes(facts: Facts) -> None:
    """Compare with the size of the batches in fetch responses, which is at least that of the broker's logs."""
    on_disk = sum(facts.log_bytes[topic] for (topic, _), row in facts.rows.items() if row["GROUP"] == facts.name)
    assert on_disk <= facts.wire_bytes
    assert facts.busy.of("tailrace_consumer_fetched_bytes_total", group=facts.name) == facts.wire_bytes


@witness("tailrace_consumer_fetch_seconds")
def fetches(facts: Facts) -> None:
    """Compare with the number of fetch responses, of which canceled ones do not count, and with the lifetime."""
    before, after = facts.fetches
    assert before * 0.8 <= sum(facts.busy.all("tailrace_consumer_fetch_seconds_count")) <= after
    lived_s = facts.busy.ended_at - facts.run.began_at
    total_s = facts.busy.of("tailrace_consumer_fetch_seconds_sum", group=facts.name)
    assert lived_s / 4 < total_s < lived_s


@witness("tailrace_consumer_commit_seconds")
def commits(facts: Facts) -> None:
    """Compare with the number of commit requests."""
    for group, count in facts.commits.items():
        assert facts.busy.of("tailrace_consumer_commit_seconds_count", group=group) == count
    total_s = facts.busy.of("tailrace_consumer_commit_seconds_sum", group=facts.name)
    assert 0 < total_s < facts.busy.ended_at - facts.run.began_at


@witness("tailrace_consumer_failed_commits_total")
def failed_commits(facts: Facts) -> None:
    """Compare with the number of request timeouts in the time in which the broker refused commits."""
    count = facts.busy.of("tailrace_consumer_failed_commits_total", group=facts.name)
    assert 1 <= count <= facts.refused_s / REQUEST_TIMEOUT_S + 1
    assert facts.busy.of("tailrace_consumer_failed_commits_total", group=f"{facts.name}-hoard") == 0


@witness("tailrace_consumer_rebalance_seconds")
def rebalances(facts: Facts) -> None:
    """Compare with the number of accepted joins, and with the lifetime."""
    for group, count in facts.joins.items():
        assert facts.busy.of("tailrace_consumer_rebalance_seconds_count", group=group) == count
    total_s = facts.busy.of("tailrace_consumer_rebalance_seconds_sum", group=facts.name)
    assert 0 < total_s < facts.busy.ended_at - facts.run.began_at


@witness("tailrace_consumer_heartbeat_age_seconds")
def heartbeat_age(facts: Facts) -> None:
    """Compare with the time for which the responses to heartbeats were delayed."""
    age_s = facts.silent.of("tailrace_consumer_heartbeat_age_seconds", group=facts.name)
    assert facts.silent_s - 0.5 <= age_s <= facts.silent_s + 2
    assert 0 <= facts.busy.of("tailrace_consumer_heartbeat_age_seconds", group=facts.name) < 2


@witness("tailrace_consumer_ignored_maps_total")
def ignored_maps(facts: Facts) -> None:
    """Compare with the one commit that had metadata of another client before the start."""
    assert facts.busy.of("tailrace_consumer_ignored_maps_total", group=facts.name) == 1
    assert facts.busy.of("tailrace_consumer_ignored_maps_total", group=f"{facts.name}-hoard") == 0


@witness("tailrace_consumer_info")
def info(facts: Facts) -> None:
    """Compare with the result of importing the compiled module."""
    native = subprocess.run(
        [sys.executable, "-c", "import tailrace._native"], env=environment(), capture_output=True, check=False
    )
    expected = "compiled" if native.returncode == 0 else "python"
    assert facts.busy.all("tailrace_consumer_info", decoder=expected, client_id=facts.name) == [1, 1]


@witness("tailrace_app_live")
def live(facts: Facts) -> None:
    """Compare with the liveness probe, which fails while the loop is blocked."""
    for scrape in (facts.starting, facts.blocked, facts.silent, facts.busy):
        assert scrape.of("tailrace_app_live") == (scrape.live == 200)
    assert (facts.starting.live, facts.blocked.live, facts.busy.live) == (200, 503, 200)


@witness("tailrace_app_ready")
def ready(facts: Facts) -> None:
    """Compare with the readiness probe, which fails before the first assignment."""
    for scrape in (facts.starting, facts.silent, facts.busy):
        assert scrape.of("tailrace_app_ready") == (scrape.ready == 200)
    assert (facts.starting.ready, facts.busy.ready) == (503, 200)


@witness("tailrace_app_loop_lag_seconds")
def loop_lag(facts: Facts) -> None:
    """Compare with the number of intervals of 0.1 s, and with the time for which the loop was blocked."""
    (blocked_s,) = [one["took_s"] for one in facts.run.calls("obey", "end") if one["took_s"] > 1]
    lived_s = facts.busy.began_at - facts.run.began_at
    assert facts.busy.of("tailrace_app_loop_lag_seconds_count") <= lived_s / 0.1
    assert facts.busy.of("tailrace_app_loop_lag_seconds_count") > (lived_s - blocked_s) / 0.1 / 3
    added_s = facts.busy.of("tailrace_app_loop_lag_seconds_sum") - facts.blocked.of("tailrace_app_loop_lag_seconds_sum")
    assert blocked_s - 0.11 <= added_s <= lived_s


@witness("tailrace_app_loop_blocked_seconds")
def loop_blocked(facts: Facts) -> None:
    """Compare with the time since the handler blocked the loop."""
    least_s, most_s = facts.blocked_s
    assert least_s - 0.11 <= facts.blocked.of("tailrace_app_loop_blocked_seconds") <= most_s + 0.11
    assert [one.of("tailrace_app_loop_blocked_seconds") for one in (facts.starting, facts.busy)] == [0, 0]


@runs_an_app
async def test_queued_records_and_pauses_are_metrics(server):
    """Queued records are those that can be polled without a fetch, and a partition is paused until resume()."""
    topic = f"w-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, 1)
    produce(server, topic, [b"%d" % n for n in range(200)])

    async with tailrace.Consumer(
        topic, bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest", max_queued_records=50
    ) as consumer:
        polled = 0
        while consumer.statistics().queued_records == 0:  # the first calls decode a single record
            await consumer.getone()
            polled += 1
        scrape = (await exposition(consumer, registry=CollectorRegistry()))[0].decode()
        consumer.pause()
        paused = (await exposition(consumer, registry=CollectorRegistry()))[0].decode()
        consumer.resume()
        rest = len(await consumer.getmany(max_records=200, timeout_ms=0))

    found, while_paused = map(values_of, (scrape, paused))
    assert 0 < found["tailrace_consumer_queued_records"] <= min(50, 200 - polled, rest)
    assert (found["tailrace_partition_paused"], while_paused["tailrace_partition_paused"]) == (0, 1)


@runs_an_app
@pytest.mark.parametrize(("reaction", "expected"), [("pause", (1, 0)), ("skip", (0, 1))])
async def test_batches_that_cannot_be_read_are_metrics(server, reaction, expected):
    """A partition that waits at a batch that is too large, and a skipped batch, are counted."""
    topic, handled = f"w-{uuid.uuid4().hex[:8]}", asyncio.Event()
    server.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "compression.type": "gzip"})
    producer.produce(topic, bytes(500_000))
    producer.flush()
    produce(server, topic, [b"last"])
    recorder = EventRecorder()
    app = tailrace.App(
        bootstrap_servers=server.bootstrap_servers,
        group_id=topic,
        max_decompressed_batch_bytes=100_000,
        on_corrupt_batch=reaction,
        hooks=[recorder],
    )

    @app.handler(topic)
    async def handle(_: bytes) -> None:
        handled.set()

    async with app:
        await recorder.wait_for(PartitionBlocked if reaction == "pause" else CorruptBatchSkipped)
        if reaction == "skip":
            await handled.wait()
        found = values_of((await exposition(app, registry=CollectorRegistry()))[0].decode())

    names = ("tailrace_partition_blocked", "tailrace_consumer_skipped_batches_total")
    assert tuple(found[name] for name in names) == expected


def values_of(text: str) -> dict[str, float]:
    """Return the values of metrics that have one sample each."""
    return {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}


OF_WORKERS = {"tailrace_worker_up", "tailrace_worker_restarts_total"}
"""Metrics that only a pool of worker processes has."""

OF_APPS = {one.name for one in METRICS if one.subject != "producer"}
"""Metrics without those of the app's producers, which ``tests/producer`` compares with what librdkafka reads."""


def test_each_metric_of_the_table_has_a_witness():
    """Each metric of the table has a witness."""
    assert WITNESSES.keys() | OF_WORKERS == OF_APPS


@runs_an_app
@pytest.mark.parametrize("metric", sorted(OF_APPS - OF_WORKERS))
def test_a_metric_is_what_its_witness_has_seen(facts, server, metric, monkeypatch):
    """Each metric equals what its witness, which is not a counter of tailrace, has recorded."""
    monkeypatch.setenv("WITNESS_SERVER", server.bootstrap_servers)

    WITNESSES[metric](facts)


@runs_an_app
def test_no_other_metrics_are_served(facts):
    """Each metric in a scrape is in the table."""
    served = {re.sub(r"_(bucket|sum|count)$", "", one.name) for one in facts.busy.samples}
    every = {one.name for one in METRICS}
    assert {name for name in served if name.startswith("tailrace_")} == every - OF_WORKERS


@runs_an_app
def test_metrics_of_workers_are_what_the_processes_do(server, folder):
    """A killed worker counts as restarted, and a stopped one is down and has no other metrics."""
    name = f"w-{uuid.uuid4().hex[:8]}"
    server.create_topic(f"{name}-jobs", 2)
    with running(server, folder, name, "witnessed_app:pool", "--workers", "2") as run:
        run.until(lambda: run.finds(lambda found: found.all("tailrace_app_ready") == [1, 1]))
        before = Scrape(run.url)
        killed = worker_process(run, server, name)
        os.kill(killed, signal.SIGKILL)
        run.until(lambda: run.finds(lambda found: found.all("tailrace_app_ready") == [1, 1]))
        after = Scrape(run.url)
        stopped = worker_process(run, server, name)
        os.kill(stopped, signal.SIGSTOP)
        try:
            down = Scrape(run.url)
        finally:
            os.kill(stopped, signal.SIGCONT)

    assert (before.all("tailrace_worker_up"), before.all("tailrace_worker_restarts_total")) == ([1, 1], [0, 0])
    assert after.all("tailrace_worker_up") == [1, 1]
    assert sorted(after.all("tailrace_worker_restarts_total")) == [0, 1]
    assert sorted(down.all("tailrace_worker_up")) == [0, 1]
    assert len(down.all("tailrace_app_ready")) == 1


def worker_process(run: Run, server: KafkaServer, name: str) -> int:
    """Return the process that handles a new record."""
    count = len(run.calls("work", "end"))
    produce(server, f"{name}-jobs", [b"1"])
    run.until(lambda: len(run.calls("work", "end")) > count)
    return int(run.calls("work", "end")[-1]["process"])
