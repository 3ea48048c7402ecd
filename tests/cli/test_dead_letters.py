"""`tailrace dead-letters`: list, show and replay."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tailrace import App, BrokerError, Record, Retry
from tailrace.app.failures.dead_letters import (
    DeadLetter,
    Failure,
    ForwardedRecord,
    dead_letter,
    read_dead_letter,
    replay_record,
)
from tailrace.app.topics.names import DEAD
from tailrace.cli import main
from tailrace.cli.dead_letters import DeadLetterFilter, DeadLetterPosition, parse_position, parse_since
from tailrace.cli.dead_letters import replay as replaying
from tailrace.cli.dead_letters.commands import DeadLetterReader
from tailrace.cli.dead_letters.replay import DeadLetterTopic, ReplayMarks, ReplayPlan, create_topics, plan_replay
from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tests.support.commands import COMMAND, environment, tailrace

NOON = 1_760_000_000_000
MINUTE = 60_000
OF_ORDERS = DeadLetterTopic("orders.billing.dead")


# ---- records of the topics -----------------------------------------------------------------------------------------


def letter(  # noqa: PLR0917
    offset: int = 0,
    error: Exception | None = None,
    handler: str = "charge",
    at_ms: int = NOON,
    value: bytes | None = b'{"total": -5}',
    partition: int = 0,
    *,
    topic: str = "orders",
    group: str = "billing",
    key: bytes | None = b"ann",
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> ForwardedRecord:
    """Return the dead letter that an app publishes for a failed record."""
    record = Record(topic, partition, offset, key, value, NOON - MINUTE, list(headers))
    return dead_letter(record, Failure(error or ValueError("negative total"), 3, handler, group, at_ms))


def as_read(letter: ForwardedRecord, offset: int = 0) -> DeadLetter:
    """Return a dead letter as it is read from its topic."""
    read = read_dead_letter(Record("x.dead", 0, offset, letter.key, letter.value, NOON, list(letter.headers)))
    assert read is not None
    return read


def plan_of(
    letters: list[DeadLetter], *, dead_topic: DeadLetterTopic = OF_ORDERS, partitions: dict[str, int] | None = None
) -> ReplayPlan:
    """Return the plan to replay dead letters of a topic without marks."""
    counts = partitions or {"orders": 6}
    return plan_replay(letters, counts, dead_topic=dead_topic, marks=ReplayMarks())


class World:
    """Original topic and dead-letter topic of a group, as librdkafka reads them."""

    def __init__(self, server) -> None:
        self._server, self.bootstrap_servers = server, server.bootstrap_servers
        self.group = "billing"
        self.origin = f"o-{uuid.uuid4().hex[:10]}"
        self.dead, self.replay = f"{self.origin}.billing.dead", f"{self.origin}.billing.replay"
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        server.create_topic(self.origin, 3)
        server.create_topic(self.dead, 2)

    def letter(self, *values: object, **options: object) -> ForwardedRecord:
        return letter(*values, topic=self.origin, group=self.group, **options)

    def write(self, *letters: ForwardedRecord, topic: str | None = None, partition: int = 0, **options: object) -> None:
        """Publish by librdkafka and wait for the acknowledgments."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, **options})
        if "transactional.id" in options:
            producer.init_transactions(20)
            producer.begin_transaction()
        for one in letters:
            producer.produce(topic or self.dead, one.value, key=one.key, headers=list(one.headers), partition=partition)
        assert producer.flush(20) == 0
        if "transactional.id" in options:
            producer.abort_transaction(20)

    def read(self, topic: str, count: int) -> list[Message]:
        """Read ``count`` records of a topic by librdkafka, in the order of its partitions."""
        consumer = ConfluentConsumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": "nobody", "auto.offset.reset": "earliest"}
        )
        consumer.assign([ConfluentTopicPartition(topic, number, 0) for number in range(self.partitions(topic))])
        found: list[Message] = []
        while len(found) < count:
            got = consumer.consume(count - len(found), timeout=20)
            assert got, f"{len(found)} of {count}"
            found += got
        consumer.close()
        return sorted(found, key=lambda one: (one.partition(), one.offset()))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=20).topics)

    def partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(timeout=20).topics[topic].partitions)

    def end(self, topic: str) -> int:
        """Return the number of records of a topic."""
        consumer = ConfluentConsumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "nobody"})
        ends = [
            consumer.get_watermark_offsets(ConfluentTopicPartition(topic, number), 20)[1]
            for number in range(self.partitions(topic))
        ]
        consumer.close()
        return sum(ends)

    def groups(self) -> set[str]:
        return {one.group_id for one in self.admin.list_consumer_groups().result(20).valid}

    def delete_records(self, before: dict[int, int]) -> None:
        self._server.delete_records(self.dead, before)


@pytest.fixture
def world(kafka_server) -> World:
    return World(kafka_server)


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    errors: str

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def words(self) -> str:
        """Output as one line, regardless of line breaks."""
        return " ".join(self.out.split())


@pytest.fixture
def call(world, monkeypatch, capsys) -> Callable[..., Done]:
    """Run `tailrace dead-letters` on the test's topic in this process, on a screen of 80 columns."""
    monkeypatch.setattr("os.environ", environment(TAILRACE_BOOTSTRAP_SERVERS=world.bootstrap_servers))

    def run(action: str, *arguments: str, topic: str | None = None) -> Done:
        # In a thread: the command runs its own event loop, beside that of pytest-asyncio.
        with ThreadPoolExecutor(1) as thread:
            try:
                code = thread.submit(main, ["dead-letters", action, topic or world.dead, *arguments]).result()
            except SystemExit as ended:
                code = int(str(ended.code))
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def fits(done: Done) -> bool:
    return all(len(line.rstrip()) <= 80 for line in done.out.splitlines())


# ---- list ----------------------------------------------------------------------------------------------------------


def test_list_counts_by_handler_and_error(world, call):
    """`list` prints count, first and last time and the oldest position by handler and error, most frequent first."""
    world.write(
        world.letter(1, at_ms=NOON + 5 * MINUTE),
        world.letter(2, at_ms=NOON + 2 * MINUTE),
        world.letter(3, KeyError("x")),
    )
    world.write(world.letter(4, at_ms=NOON + 9 * MINUTE), world.letter(5, handler="audit"), partition=1)

    done = call("list", "--json")

    assert done.code == 0
    assert [(one["handler"], one["error_type"], one["count"]) for one in done.lines] == [
        ("charge", "ValueError", 3),
        ("charge", "KeyError", 1),
        ("audit", "ValueError", 1),
    ]
    first = done.lines[0]
    assert (first["first"], first["last"]) == ("2025-10-09T08:55:20.000Z", "2025-10-09T09:02:20.000Z")
    assert (first["oldest"], first["group"]) == ("0:1", "billing")


def test_list_wraps_long_names_to_80_columns(world, call):
    """`list` wraps long names of handlers."""
    handler = "shop.billing.subscriptions.handlers.charge_the_customer_for_the_month"
    world.write(world.letter(1, handler=handler), *(world.letter(n, ConnectionError("x")) for n in range(1_200)))

    done = call("list")

    lines = done.out.splitlines()
    width = lines[1].index("count")
    assert fits(done)
    assert handler in "".join(line[:width].strip() for line in lines)
    assert re.search(r"charge +1,200 +0 +2025-10-09 08:53:20 +0:1\n", done.out)
    assert f"total 1,201 dead letters in {world.dead}" in done.words


def test_other_records_are_counted_separately(world, call):
    """`list` counts records without the headers of a dead letter separately."""
    world.write(ForwardedRecord(b"k", b"not ours", ()), ForwardedRecord(None, None, (("x", b"1"),)))
    assert f"no dead letters in {world.dead} (2 other records)" in call("list").words

    world.write(world.letter())
    done = call("list")

    assert f"total 1 dead letter in {world.dead} others 2 records without the headers" in done.words


def test_an_empty_topic_is_no_error(call):
    assert "total     no dead letters in" in call("list").out
    assert call("list", "--json") == Done(0, "", "")
    assert "total     no dead letters in" in call("show").out
    assert "total     no dead letters in" in call("replay", "--all", "--execute").out


def test_app_and_set_select_the_brokers(world, tmp_path):
    """--app, --set and --timeout apply, and group options of the app are ignored."""
    world.write(world.letter())
    (tmp_path / "letter_shop.py").write_text(
        "from tailrace import App\n"
        f"options = dict(group_id='billing', bootstrap_servers={world.bootstrap_servers!r})\n"
        "billing = App(reset_offset_on_start=True, **options)\n"
    )
    listing, brokers = ("dead-letters", "list", world.dead), f"bootstrap_servers={world.bootstrap_servers}"
    by_app = tailrace(*listing, "--app", "letter_shop:billing", "--json", PYTHONPATH=str(tmp_path))
    by_set = tailrace(*listing, "--set", brokers, "--timeout", "20")
    wrong = tailrace(*listing, "--set", "bootstrap_server=x:1")

    assert (by_app.returncode, by_app.stderr) == (0, "")
    assert '"count":1' in by_app.stdout
    assert "total     1 dead letter in" in by_set.stdout
    assert wrong.returncode == 1
    assert "Traceback" not in wrong.stderr


# ---- reading -------------------------------------------------------------------------------------------------------


def test_reading_joins_no_group_and_creates_no_topic(world, call, monkeypatch):
    """`list` joins no group and creates no topic or commit, even if the environment has group options."""
    world.write(world.letter())
    monkeypatch.setenv("TAILRACE_GROUP_ID", f"{world.origin}-app")
    monkeypatch.setenv("TAILRACE_GROUP_INSTANCE_ID", "pod-1")
    monkeypatch.setenv("TAILRACE_AUTO_OFFSET_RESET", "latest")
    before = world.topics()

    assert [call(*what).code for what in (("list",), ("show",), ("replay", "--all"))] == [0, 0, 0]

    assert f"{world.origin}-app" not in world.groups()
    assert world.topics() == before
    assert call("list", "--json").lines[0]["count"] == 1


def test_list_ends_at_the_end_of_the_topic_at_its_start(world, call):
    """`list` ends although another client writes to the topic without a pause."""
    stop, fed = threading.Event(), threading.Event()

    def feed() -> None:
        while not stop.is_set():
            world.write(*(world.letter(n) for n in range(200)))
            fed.set()

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        assert fed.wait(30)
        counts = [sum(one["count"] for one in call("list", "--json").lines) for _ in range(3)]
        fed.clear()
        assert fed.wait(30)  # the writer still runs
    finally:
        stop.set()
        feeding.join()

    assert counts == sorted(counts)
    assert 200 <= counts[0] < world.end(world.dead)
    assert counts[-1] <= world.end(world.dead)


async def test_records_written_after_the_start_are_not_read(world):
    """Dead letters written after the end offsets are fetched are not read."""

    class Later(DeadLetterReader):
        async def _ends(self) -> dict[int, int]:
            ends = await super()._ends()
            await asyncio.to_thread(world.write, world.letter(3), world.letter(4))
            return ends

    world.write(world.letter(1), world.letter(2))
    options = {"bootstrap_servers": world.bootstrap_servers, "auto_offset_reset": "earliest"}
    cluster = Cluster(resolve(options, {}))
    await cluster.bootstrap()

    found = [one.origin.offset async for one in Later(cluster, world.dead, options, 30.0).read()]

    cluster.close()
    await asyncio.sleep(0)
    assert found == [1, 2]
    assert world.end(world.dead) == 4


def test_aborted_dead_letters_are_skipped(world, call):
    """`list` skips dead letters of an aborted transaction, and the control record at the end of the log."""
    world.write(world.letter(1))
    world.write(world.letter(2), world.letter(3), **{"transactional.id": world.origin})

    assert [one["count"] for one in call("list", "--json").lines] == [1]


def test_deleted_records_are_skipped(world, call):
    """`list` reads a log that starts after offset 0, and one that is empty after a deletion."""
    world.write(*(world.letter(n) for n in range(5)))
    world.delete_records({0: 3})
    assert [(one["count"], one["oldest"]) for one in call("list", "--json").lines] == [(2, "0:3")]

    world.delete_records({0: 5})

    assert call("list", "--json").lines == []


# ---- show ----------------------------------------------------------------------------------------------------------


def test_show_prints_all_parts_of_a_dead_letter(world, call):
    """`show` prints position, error, handler, origin, headers, key, value and traceback."""
    value = b'{"customer":"ann","total":-5.10,"id":12345678901234567890}'
    headers = [("content-type", b"application/json"), ("trace", b"\x01\xff"), ("none", None)]
    world.write(world.letter(17, value=value, partition=2, headers=headers), partition=1)

    done = call("show", "--offset", "1:0")

    assert done.code == 0
    assert fits(done)
    for part in (
        f"offset 1:0 of {world.dead}, failed 2025-10-09 08:53:20 UTC",
        "error ValueError: negative total",
        "handler charge of group billing, 3 attempts",
        f"origin {world.origin}[2]@17, written 2025-10-09 08:52:20 UTC",
        "headers content-type: application/json trace: 0x01ff none: null",
        "key ann value JSON, 58 bytes",
        "ValueError: negative total",
    ):
        assert part in done.words
    assert '  {\n    "customer": "ann",\n    "total": -5.10,\n    "id": 12345678901234567890\n  }\n' in done.out


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"[1, 2]", "JSON, 6 bytes", "  [\n    1,\n    2\n  ]"),
        (b"{not json", "text, 9 bytes", "  {not json"),
        ("zwölf\nÄpfel".encode(), "text, 13 bytes", "  zwölf\n  Äpfel"),
        (b"", "text, 0 bytes", ""),
        (b"\x00\x00\x00\x00\x07abc", "hex, 8 bytes", "  00000000  00 00 00 00 07 61 62 63"),
        (bytes(range(256)), "hex, 256 bytes", "  000000f0  f0 f1"),
        (None, "null (tombstone)", ""),
    ],
)
def test_values_are_shown_as_json_text_or_hex(world, call, value, kind, text):
    """`show` prints JSON indented, text as text, other bytes as hex, and null as a tombstone."""
    world.write(world.letter(value=value))

    done = call("show")

    assert f"value     {kind}" in done.out
    assert text in done.out
    assert fits(done)


def test_json_output_is_exact(world, call):
    """`show --json` prints one line for each dead letter, in which numbers keep all digits."""
    exact = b'{"n":1.10,"big":12345678901234567890,\n"a":"x\\ny"}'
    for number, value in enumerate((exact, b"plain", b"\xff\x00", None)):
        world.write(world.letter(number, value=value, at_ms=NOON + number, headers=[("h", b"\x01")]))

    done = call("show", "--all", "--json")

    assert [one["value"]["format"] for one in done.lines] == ["JSON", "text", "hex", "null"]
    assert '"value":{"n":1.10,"big":12345678901234567890,"a":"x\\ny"}' in done.out.splitlines()[0]
    assert [one["value"]["value"] for one in done.lines[1:]] == ["plain", "ff00", None]
    first = done.lines[0]
    assert first["headers"] == [{"name": "h", "format": "hex", "value": "01"}]
    assert first["key"] == {"format": "text", "value": "ann"}
    assert (first["letter"], first["reason"], first["failed_at"]) == (
        "0:0",
        "negative total",
        "2025-10-09T08:53:20.000Z",
    )
    assert first["origin"] == {"topic": world.origin, "partition": 0, "offset": 0, "timestamp": NOON - MINUTE}


def test_show_without_selection_prints_the_last_failure(world, call):
    """`show` without a selection prints the dead letter that failed last, in any partition."""
    world.write(world.letter(1, at_ms=NOON + MINUTE), partition=0)
    world.write(world.letter(2, at_ms=NOON + 3 * MINUTE), world.letter(3, at_ms=NOON), partition=1)

    assert [one["letter"] for one in call("show", "--json").lines] == ["1:0"]


def test_control_characters_and_markup_are_escaped(world, call):
    """`show` escapes control characters and rich markup of records."""
    evil = "\x1b[2J[bold red]x[/]\x07\u202e"
    world.write(
        world.letter(
            error=ValueError(evil),
            handler=evil,
            value=f"{evil}".encode(),
            key=evil.encode(),
            headers=[(evil, evil.encode())],
        )
    )

    for action in (["list"], ["show"], ["replay", "--all"]):
        done = call(*action)
        assert not {"\x1b", "\x07", "\u202e"} & set(done.out)
    assert call("show").out.count("\\x1b[2J[bold red]x[/]\\x07") >= 3


def test_show_finds_offsets_and_names_missing_ones(world, call):
    """`show --offset` prints the dead letters at these positions, and a missing one is an error."""
    world.write(*(world.letter(n, KeyError(n)) for n in range(50)))
    world.write(ForwardedRecord(b"k", b"not ours", ()), partition=1)

    done = call("show", "--json", "--offset", "0:41", "--offset", "0:7")
    assert [(one["letter"], one["reason"]) for one in done.lines] == [("0:7", "7"), ("0:41", "41")]

    for place in ("0:50", "1:0", "7:1"):
        missed = call("show", "--offset", place)
        assert (missed.code, missed.out) == (1, "")
        assert (
            f"{world.dead} has no dead letter at {place} - find positions with `tailrace dead-letters list"
            in missed.errors
        )


# ---- replay --------------------------------------------------------------------------------------------------------


def test_replay_without_execute_sends_nothing(world, call):
    """`replay` without --execute prints the plan and sends nothing."""
    world.write(world.letter(1), world.letter(2))

    done = call("replay", "--all")

    assert done.code == 0
    assert fits(done)
    assert f"replay 2 dead letters of {world.dead} to {world.replay} (new, 3 partitions)" in done.words
    assert "dry run nothing was sent - add --execute to send 2 dead letters" in done.words
    assert [one["sent"] for one in call("replay", "--all", "--json").lines] == [False, False]
    assert world.replay not in world.topics()


def test_replay_restores_key_value_headers_and_partition(world, call):
    """`replay` sends key, value and headers of the original record to its partition in the replay topic."""
    own = [("content-type", b"application/json"), ("none", None)]
    world.write(world.letter(17, partition=2, headers=own), world.letter(18, partition=1, key=None, value=b"\xff"))

    done = call("replay", "--all", "--execute")

    assert done.code == 0
    assert f"created {world.replay} (3 partitions) sent 2 dead letters, all acknowledged by the brokers" in done.words
    assert world.partitions(world.replay) == 3
    second, first = world.read(world.replay, 2)
    assert (first.partition(), first.key(), first.value()) == (2, b"ann", b'{"total": -5}')
    assert (second.partition(), second.key(), second.value()) == (1, None, b"\xff")
    assert first.headers()[:2] == own
    assert dict(first.headers()[2:]) == {
        "tailrace-deaths": b"1",
        "tailrace-replays": b"1",
        "tailrace-origin-topic": world.origin.encode(),
        "tailrace-origin-partition": b"2",
        "tailrace-origin-offset": b"17",
        "tailrace-origin-timestamp": str(NOON - MINUTE).encode(),
    }
    assert world.end(world.origin) == 0


def test_replay_restores_the_order_of_records(world, call):
    """`replay` sends records of a partition in the order of their original offsets."""
    sizes = {n: 150_000 if n % 50 == 7 else 20 for n in range(450)}
    letters = [world.letter(n, partition=n % 3, value=b"%d %s" % (n, b"x" * size)) for n, size in sizes.items()]
    world.write(*reversed(letters[::2]), partition=1)
    world.write(*reversed(letters[1::2]), partition=0)

    assert call("replay", "--all", "--execute").code == 0

    sent = [(one.partition(), int(one.value().split()[0])) for one in world.read(world.replay, 450)]
    assert sent == sorted((n % 3, n) for n in sizes)


def test_replay_prints_a_json_line_for_each_sent_record(world, call):
    """`replay --json` prints a line with the new partition and offset of each record."""
    world.write(*(world.letter(n, partition=n % 3, value=b"%d" % n) for n in range(9)))

    lines = call("replay", "--all", "--execute", "--json").lines

    there = {(one.partition(), one.offset()): one.value() for one in world.read(world.replay, 9)}
    assert {(one["partition"], one["offset"]): b"%d" % one["origin"]["offset"] for one in lines} == there
    assert {(one["to"], one["sent"]) for one in lines} == {(world.replay, True)}


def test_an_existing_replay_topic_is_used(world, call, kafka_server):
    """`replay` uses an existing replay topic, even if it has fewer partitions than the original topic."""
    kafka_server.create_topic(world.replay, 1)
    world.write(world.letter(1, partition=2), world.letter(2, partition=0))

    done = call("replay", "--all", "--execute")

    assert f"to {world.replay} (1 partition)" in done.words
    assert "created" not in done.words
    assert len(world.read(world.replay, 2)) == 2


def test_replay_selects_by_error_time_offset_and_limit(world, call):
    """`replay` sends the dead letters that --error-type, --since, --offset and --limit select."""
    errors = [ValueError("v"), ConnectionError("c"), BrokerError(3, "b")]
    world.write(*(world.letter(n, errors[n % 3], at_ms=NOON + n * MINUTE) for n in range(9)))

    def chosen(*arguments: str) -> list[int]:
        return sorted(one["origin"]["offset"] for one in call("replay", "--json", *arguments).lines)

    assert chosen("--error-type", "ConnectionError") == [1, 4, 7]
    assert chosen("--error-type", "BrokerError") == chosen("--error-type", "tailrace.errors.BrokerError") == [2, 5, 8]
    assert chosen("--error-type", "Broker") == []
    assert chosen("--since", "2025-10-09T08:59:20") == chosen("--since", "2025-10-09T10:59:20+02:00") == [6, 7, 8]
    assert chosen("--offset", "0:3", "--offset", "0:5") == [3, 5]
    assert chosen("--all", "--limit", "2") == [0, 1]
    assert chosen("--error-type", "ValueError", "--since", "2025-10-09T08:54", "--limit", "1") == [3]


def test_only_the_last_dead_letter_of_a_record_is_sent(world, call):
    """`replay` sends the last dead letter of a record, and reports the earlier ones as skipped."""
    first = world.letter(1, ValueError("first"))
    again = replay_record(as_read(first))
    record = Record(world.replay, 0, 0, again.key, again.value, NOON, list(again.headers))
    second = dead_letter(record, Failure(KeyError("second"), 3, "charge", "billing", NOON + MINUTE))
    world.write(first, second, world.letter(2))

    done = call("replay", "--all", "--execute")

    assert done.code == 0
    assert f"replay 2 dead letters of {world.dead}" in done.words
    assert "skipped 1 dead letter: a later dead letter of the same record is sent instead" in done.words
    sent = {dict(one.headers())["tailrace-origin-offset"]: dict(one.headers()) for one in world.read(world.replay, 2)}
    assert (sent[b"1"]["tailrace-deaths"], sent[b"1"]["tailrace-replays"]) == (b"2", b"2")


def test_to_origin_prints_a_warning(world, call):
    """`replay --to-origin` sends to the original topic, and warns that all its groups handle the record."""
    world.write(world.letter(1, partition=2))

    for more in ([], ["--execute"]):
        done = call("replay", "--all", "--to-origin", world.origin, *more)
        assert done.code == 0
        assert f"warning every group that reads {world.origin} handles these records again" in done.words

    assert [one.partition() for one in world.read(world.origin, 1)] == [2]
    assert world.replay not in world.topics()


def test_dead_letters_without_origin_are_skipped(world, call):
    """`replay` skips dead letters without an origin, sends the others, and exits with 1."""
    world.write(ForwardedRecord(b"k", b"v", (("tailrace-error-type", b"Boom"),)), world.letter(1))

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert "skipped 1 dead letter: its headers lack the origin or the group (0:0)" in done.words
    assert "sent 1 dead letter, all acknowledged" in done.words
    assert [(one["letter"], one["sent"]) for one in call("replay", "--all", "--json").lines] == [
        ("0:0", False),
        ("0:1", False),
    ]


def test_a_deleted_origin_needs_the_replay_topic(world, call, kafka_server):
    """`replay` succeeds after the original topic was deleted, and --to-origin is an error."""
    dead = f"{world.origin}-gone.billing.dead"
    kafka_server.create_topic(dead, 2)
    world.write(letter(1, topic=f"{world.origin}-gone", group="billing"), topic=dead)

    gone = call("replay", "--all", "--execute", "--to-origin", f"{world.origin}-gone", topic=dead)
    assert (gone.code, f"topic {world.origin}-gone no longer exists - replay without --to-origin" in gone.words) == (
        1,
        True,
    )

    assert call("replay", "--all", "--execute", topic=dead).code == 0
    assert world.partitions(f"{world.origin}-gone.billing.replay") == 2


def test_rejected_records_are_named_with_their_offsets(world, call, kafka_server):
    """If the broker rejects a record, the error has the reason and the arguments to send the missing ones."""
    kafka_server.create_topic(world.replay, 3, config={"max.message.bytes": 2_000})
    world.write(
        world.letter(1, partition=0),
        world.letter(2, partition=1, value=b"x" * 5_000),
        world.letter(3, partition=1),
        world.letter(4, partition=2),
    )

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert "sent" not in done.words
    assert "MESSAGE_TOO_LARGE" in done.errors
    assert "dead letters were acknowledged, the others were not" in done.errors
    assert "3 of 4 dead letters were acknowledged" in done.errors
    assert "replay the others: --offset 0:1\n" in done.errors
    assert world.end(world.replay) == 3


def test_a_replay_topic_that_cannot_be_created_is_an_error(world, call, kafka_server):
    """If the replay topic cannot be created, the error has the broker's reason and nothing is sent."""
    kafka_server.create_topic(world.replay.replace(".", "_"))  # names that differ only in "." and "_" collide
    world.write(world.letter(1))

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert f"{world.replay} does not exist and cannot be created - create it with 3 partitions" in done.errors


async def test_a_topic_created_concurrently_is_accepted(world, kafka_server):
    """`replay` accepts that an app creates the replay topic at the same time."""
    kafka_server.create_topic(world.replay, 3)
    cluster = Cluster(resolve({"bootstrap_servers": world.bootstrap_servers}, {}))
    await cluster.bootstrap()

    await create_topics(cluster, {world.replay: 3})

    cluster.close()
    await asyncio.sleep(0)
    assert world.partitions(world.replay) == 3


def test_each_group_gets_its_own_replays():
    """`replay` of a shared dead-letter topic sends each dead letter to the replay topic of its group."""
    letters = [as_read(letter(1, group="billing"), 0), as_read(letter(1, group="stock"), 1)]

    shared = DeadLetterTopic("x.dead", "x.dead")
    plan = plan_of(letters, dead_topic=shared)

    assert plan.topics_to_create == {"orders.billing.replay": 6, "orders.stock.replay": 6}
    assert plan.superseded == ()


def test_records_of_a_recreated_topic_are_distinct():
    """The same offset before and after a topic was recreated counts as two records."""
    before = letter(5, value=b"before")
    made = Record("orders", 0, 5, b"ann", b"after", NOON, [])
    after = dead_letter(made, Failure(ValueError("no"), 3, "charge", "billing", NOON + MINUTE))
    plan = plan_of([as_read(before, 0), as_read(after, 1)])

    assert [one.letter.value for one in plan.replays] == [b"before", b"after"]
    assert plan.superseded == ()


@pytest.mark.parametrize("to_origin", [None, "orders"])
@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"topic": "payments"}, "whose dead letters are in 'payments.billing.dead'"),
        ({"group": "stock"}, "whose dead letters are in 'orders.stock.dead'"),
        ({"topic": "pay ments"}, "and '-', not ' '"),
        ({"topic": "\x1b[2J"}, "a topic name may contain only"),
        ({"topic": "o" * 300}, "1 to 249 characters"),
    ],
)
def test_forged_origins_are_refused(forged, why, to_origin):
    """`replay` skips a dead letter whose origin does not match the dead-letter topic, and sends the others."""
    letters = [as_read(letter(1), 0), as_read(letter(2, **forged), 1), as_read(letter(3), 2)]

    plan = plan_of(letters, dead_topic=DeadLetterTopic("orders.billing.dead", origin=to_origin))

    assert [one.letter for one in plan.replays] == [letters[0], letters[2]]
    assert {one.topic for one in plan.replays} == {"orders" if to_origin else "orders.billing.replay"}
    ((refused, reason),) = plan.refused
    assert (refused, why in reason) == (letters[1], True)


def test_forged_dead_letters_are_reported_and_others_are_sent(world, call):
    """`replay` reports dead letters with an illegal or another topic name, and sends the others."""
    world.write(world.letter(1), letter(2, topic="no topic\x1b[2J"), letter(3, topic="payments"), world.letter(4))

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert "sent 2 dead letters, all acknowledged" in done.words
    assert "(0:1)" in done.words
    assert "(0:2)" in done.words
    assert "\x1b[2J" not in done.out
    assert "payments" not in world.topics()


def test_dead_letter_template_of_the_app_is_accepted(world, call, kafka_server):
    """--dead-letter accepts the template of the dead-letter topics' names."""
    dead = f"dlq-{world.origin}"
    kafka_server.create_topic(dead, 1)
    world.write(world.letter(1), topic=dead)

    assert call("replay", "--all", "--execute", topic=dead).code == 1
    assert call("replay", "--all", "--execute", "--dead-letter", "dlq-{topic}", topic=dead).code == 0
    assert world.end(world.replay) == 1


# ---- replayed dead letters -----------------------------------------------------------------------------------------


def start_replay(world: World) -> subprocess.Popen[str]:
    """Start a process that replays all dead letters of the test's topic."""
    return subprocess.Popen(
        [*COMMAND, "dead-letters", "replay", world.dead, "--all", "--execute"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TAILRACE_BOOTSTRAP_SERVERS=world.bootstrap_servers),
    )


def test_a_replayed_dead_letter_is_not_sent_again(world, call):
    """A second `replay` sends nothing and exits with 1; all actions show what was replayed; --again sends again."""
    world.write(world.letter(1), world.letter(2, KeyError("x")))
    assert call("replay", "--error-type", "ValueError", "--execute").code == 0

    again = call("replay", "--error-type", "ValueError", "--execute")
    others = call("replay", "--all", "--execute")

    assert again.code == 1
    assert fits(again)
    assert re.search(r"skipped 1 dead letter: replayed before, last [-0-9]+ [:0-9]+ UTC - add --again", again.words)
    assert others.code == 0
    assert "sent 1 dead letter," in others.words
    assert [dict(one.headers())["tailrace-origin-offset"] for one in world.read(world.replay, 2)] == [b"1", b"2"]
    assert {one["error_type"]: one["replayed"] for one in call("list", "--json").lines} == {
        "ValueError": 1,
        "KeyError": 1,
    }
    assert f"total 2 dead letters in {world.dead} replayed 2 of them" in call("list").words
    assert [one["replayed_to"] for one in call("show", "--all", "--json").lines] == [
        f"{world.replay}[0]@0",
        f"{world.replay}[0]@1",
    ]
    refused = call("replay", "--all", "--json").lines
    assert {(one["sent"], one["why"]) for one in refused} == {
        (False, f"replayed to {world.replay}[0]@0 - add --again"),
        (False, f"replayed to {world.replay}[0]@1 - add --again"),
    }

    forced = call("replay", "--offset", "0:0", "--execute", "--again")

    assert forced.code == 0
    assert fits(forced)
    assert "replayed" in forced.words.partition("sent")[0]
    assert world.end(world.replay) == 3


def test_each_selection_knows_every_copy_of_a_replayed_record(world, call):
    """A copy of a replayed dead letter, also in another partition, counts as replayed with every selection."""
    world.write(world.letter(1), partition=0)
    world.write(world.letter(1, at_ms=NOON + 5), partition=1)
    assert call("replay", "--offset", "0:0", "--to-origin", world.origin, "--execute").code == 0

    for selection in (["--offset", "1:0"], ["--offset", "0:0"], ["--all"], ["--since", "2020-01-01"]):
        assert call("replay", *selection, "--execute").code == 1

    assert (world.end(world.origin), world.replay in world.topics()) == (1, False)


def test_a_copy_with_another_trace_is_the_same_record(world, call):
    """The trace headers of dead letters differ, because each failure has its own; they are copies nevertheless."""
    for number in (1, 2):
        world.write(world.letter(1, headers=[("id", b"x"), ("traceparent", b"00-%032d-%016d-01" % (number, number))]))

    assert call("replay", "--all", "--execute").code == 0
    assert world.end(world.replay) == 1
    assert call("replay", "--all", "--execute").code == 1


async def test_a_replayed_record_that_fails_again_can_be_replayed(world, call):
    """An app that fails again writes a new dead letter, which is not "already replayed", even after --again."""
    failures: asyncio.Queue[Record] = asyncio.Queue()
    app = App(
        group_id="billing",
        bootstrap_servers=world.bootstrap_servers,
        dead_letter=DEAD,
        retry=Retry(attempts=2, backoff_ms=1),
    )

    @app.handler(world.origin)
    async def charge(record: Record) -> None:
        failures.put_nowait(record)
        raise ValueError("no")

    async def dead_letters(number: int) -> list[dict]:
        """Wait until the dead-letter topic has this number of dead letters, and return all."""
        async with asyncio.timeout(60):
            while len(found := (await asyncio.to_thread(call, "show", "--all", "--json")).lines) < number:
                await failures.get()
        return found

    async def replay(*arguments: str) -> int:
        return (await asyncio.to_thread(call, "replay", "--execute", *arguments)).code

    async with app:
        await app.publish(world.origin, b"1", key=b"k")
        (first,) = await dead_letters(1)
        assert await replay("--all") == 0
        second = (await dead_letters(2))[1]
        assert (second["deaths"], second["replayed_at"]) == (2, None)
        assert [await replay("--all"), await replay("--offset", first["letter"])] == [0, 1]
        third = (await dead_letters(3))[2]
        assert (third["deaths"], third["replayed_at"]) == (3, None)
        assert await replay("--all") == 0
        await dead_letters(4)
        assert await replay("--again", "--offset", first["letter"]) == 0
        assert [one["deaths"] for one in await dead_letters(5)] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_replay_is_continued(world, call, kafka_server, number, monkeypatch):
    """After Ctrl-C, exactly the records that were sent are marked; after SIGKILL, at least those marked were sent."""
    count = 24_000  # many more than are sent until the first of them is seen
    kafka_server.create_topic(world.replay, 3)
    world.write(*(world.letter(n, value=b"%d" % n) for n in range(count)))
    process = start_replay(world)
    while not world.end(world.replay):
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    sent, marked = world.end(world.replay), sum(one["replayed"] for one in call("list", "--json").lines)

    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert "Traceback" not in errors
    assert 0 < sent < count
    if number is signal.SIGKILL:
        assert marked <= sent
        early = call("replay", "--all", "--execute")
        assert (early.code, world.end(world.replay)) == (1, sent)
        assert re.search(r"another replay of .* runs .* if it was killed, replay again after", early.errors)
        monkeypatch.setattr(replaying, "ACTIVE_MS", 0)
    else:
        assert marked == sent
        assert f"{sent:,} of {count:,} dead letters were sent, and marked as replayed" in " ".join(output.split())

    assert call("replay", "--all", "--execute").code == 0

    assert {int(one.value()) for one in world.read(world.replay, sent + count - marked)} == set(range(count))
    assert world.end(world.replay) == sent + count - marked


def test_of_two_replays_at_once_one_sends(world, kafka_server):
    """If several operators replay at the same time, each dead letter is sent once, and the others are told."""
    kafka_server.create_topic(world.replay, 3)
    world.write(*(world.letter(n, partition=n % 3) for n in range(1_000)))
    processes = [start_replay(world) for _ in range(3)]
    done = [(*process.communicate(timeout=120), process.returncode) for process in processes]

    assert world.end(world.replay) == 1_000
    assert sorted(code for *_, code in done) == [0, 1, 1]
    for output, errors, code in done:
        assert code == 0 or "another replay of" in errors or "add --again" in output, errors


def test_a_recreated_topic_has_no_replayed_dead_letters(world, call, kafka_server):
    """The marks are deleted with the dead-letter topic."""
    world.write(world.letter(1))
    assert call("replay", "--all", "--execute").code == 0
    kafka_server.delete_topic(world.dead)
    kafka_server.create_topic(world.dead, 2)
    world.write(world.letter(1))

    assert call("replay", "--all", "--execute").code == 0


def test_marks_survive_retention_and_compaction(world, call):
    """Each mark follows its dead letter in the same partition, and has a key and a value of its own."""
    for partition in (0, 1):
        world.write(world.letter(partition), world.letter(partition + 7), partition=partition)
    assert call("replay", "--all", "--execute").code == 0

    kept = [one for one in world.read(world.dead, 10) if dict(one.headers()).get("tailrace-replay-mark")]
    placed = [(one.partition(), json.loads(one.value())) for one in kept]

    assert sorted(mark["letter"] for _, mark in placed if mark["kind"] == "replayed") == ["0:0", "0:1", "1:0", "1:1"]
    assert all(mark["letter"].startswith(f"{number}:") for number, mark in placed if mark["kind"] == "replayed")
    assert len({one.key() for one in kept}) == 5  # four dead letters, and the start and end of one run
    world.delete_records({0: 1, 1: 2})
    assert [one["replayed"] for one in call("list", "--json").lines] == [1]


def test_a_replay_that_cannot_be_marked_sends_nothing(world, call, kafka_server):
    """Without permission to write marks, nothing is sent, and the error says what to grant."""
    world.write(world.letter(1))
    limit = ConfigEntry("max.message.bytes", "10", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, world.dead, incremental_configs=[limit])
    for changed in world.admin.incremental_alter_configs([resource]).values():
        changed.result(20)

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert f"grant WRITE on {world.dead}" in done.errors
    assert world.end(world.replay) == 0


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"{}", b'{"kind":"replayed"}', b'{"kind":"run","run":"a","state":"started","client":5}', None],
)
def test_malformed_marks_are_ignored(world, call, value):
    """A record with the header of a mark and other contents is neither a mark nor a dead letter."""
    world.write(world.letter(1), ForwardedRecord(b"k", value, (("tailrace-replay-mark", b"1"),)))

    assert "others 1 record without the headers of a dead letter" in call("list").words
    assert call("replay", "--all", "--execute").code == 0


# ---- forged dead letters -------------------------------------------------------------------------------------------


def forged_deaths(genuine: ForwardedRecord, deaths: int, **changes: object) -> ForwardedRecord:
    headers = [(name, b"%d" % deaths if name == "tailrace-deaths" else value) for name, value in genuine.headers]
    return genuine._replace(headers=tuple(headers))._replace(**changes)


def test_a_forged_number_of_deaths_replaces_no_other_content(world, call):
    """Dead letters of one record with different contents are refused, and the genuine one can be selected."""
    genuine = world.letter(5, value=b"10")
    world.write(genuine, world.letter(6), forged_deaths(genuine, 10**17, value=b"9999999"))

    done = call("replay", "--all", "--execute")

    assert done.code == 1
    assert fits(done)
    assert (
        "skipped 2 dead letters: the same record has another dead letter with another key, value or headers"
        in done.words
    )
    assert call("replay", "--offset", "0:0", "--execute").code == 0
    assert [one.value() for one in world.read(world.replay, 2)] == [b'{"total": -5}', b"10"]
    assert call("replay", "--all", "--execute").code == 1
    assert world.end(world.replay) == 2


@pytest.mark.parametrize(
    "changes", [{"key": None}, {"key": b"bob"}, {"value": None}, {"headers": [("id", b"y")]}, {"headers": []}]
)
def test_each_part_of_a_copy_must_be_equal(changes):
    """A later dead letter replaces an earlier one only if key, value and own headers are equal."""
    own = {"key": b"ann", "value": b"1", "headers": [("id", b"x")]}
    first, copy = letter(5, **own), letter(5, at_ms=NOON + 1, **own)
    other = letter(5, at_ms=NOON + 2, **own | changes)

    equal, differing = (plan_of([as_read(first, 0), as_read(second, 1)]) for second in (copy, other))

    assert ([one.letter.record.offset for one in equal.replays], len(equal.superseded)) == ([1], 1)
    assert (differing.replays, differing.superseded, len(differing.refused)) == ((), (), 2)


def test_to_origin_refuses_dead_letters_that_name_another_topic():
    """The name of a dead-letter topic may fit several topics and groups, so --to-origin names the topic."""
    name = "shop.orders.billing.dead"
    genuine = as_read(letter(5, topic="shop.orders"), 0)
    steered = as_read(letter(6, topic="shop", group="orders.billing"), 1)
    counts = {"shop": 1, "shop.orders": 1, name: 1}

    plan = plan_of([genuine, steered], dead_topic=DeadLetterTopic(name, origin="shop.orders"), partitions=counts)

    assert [(one.topic, one.letter) for one in plan.replays] == [("shop.orders", genuine)]
    assert plan.refused == ((steered, "its headers name topic 'shop', not the 'shop.orders' of --to-origin"),)


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ([], "ACTION"),
        (["lst"], "invalid choice: 'lst'"),
        (["list"], "a topic is required: give TOPIC, such as orders.billing.dead, or set TAILRACE_DEAD_LETTER_TOPIC"),
        (["replay", "t"], "a selection is required: give --offset, --since, --error-type or --all"),
        (["replay", "t", "--execute"], "a selection is required"),
        (["replay", "t", "--limit", "3"], "a selection is required"),
        (["replay", "t", "--all", "--error-type", "X"], "--all excludes"),
        (["show", "t", "--offset", "3"], "must be PARTITION:OFFSET, such as 0:17"),
        (["show", "t", "--offset", "-1:3"], "argument --offset: "),
        (["show", "t", "--since", "yesterday"], "must be an age, such as 90s, 30m, 2h or 3d, or a time"),
        (["show", "t", "--since", "9999999w"], "must be an age"),
        (["show", "t", "--limit", "0"], "must be a positive integer"),
        (["list", "t", "--execute"], "unrecognized arguments: --execute"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_usage_errors_exit_with_2_and_a_hint(arguments, hint, capsys, monkeypatch):
    """A usage error exits with 2 and a hint, without a connection to a broker."""
    monkeypatch.setattr("os.environ", environment())

    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", *arguments])

    assert ended.value.code == 2
    assert hint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("action", ["list", "show", "replay"])
def test_help_of_each_action_fits_and_has_examples(action):
    done = tailrace("dead-letters", action, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert f"  tailrace dead-letters {action}" in done.stdout.partition("examples:")[2]


def test_brokers_and_topic_come_from_the_environment(world, call, monkeypatch):
    """TAILRACE_ variables select brokers and topic; arguments override them."""
    world.write(world.letter(1))
    variables = {"TAILRACE_BOOTSTRAP_SERVERS": world.bootstrap_servers, "TAILRACE_DEAD_LETTER_TOPIC": world.dead}

    done = tailrace("dead-letters", "list", **variables)
    monkeypatch.setenv("TAILRACE_DEAD_LETTER_TOPIC", world.dead)
    other = call("list", topic=world.origin)
    nowhere = call("list", "--bootstrap-servers", "127.0.0.1:1")

    assert (done.returncode, done.stderr, f"total     1 dead letter in {world.dead}" in done.stdout) == (0, "", True)
    assert f"no dead letters in {world.origin}" in other.out
    assert nowhere.code == 1
    assert nowhere.errors.startswith("tailrace dead-letters: no broker answers: 127.0.0.1:1: connection refused - ")
    assert nowhere.errors.count("\n") == 1


def test_a_similar_topic_is_suggested(world, call):
    """An unknown topic is one error line with a similar name; the topic is not created."""
    done = call("list", topic=world.dead.replace("billing", "biling"))

    assert (done.code, done.out) == (1, "")
    assert f"did you mean {world.dead}" in done.errors
    assert world.dead.replace("billing", "biling") not in world.topics()


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("3d", 259_200)])
def test_since_accepts_an_age(text, seconds):
    before = datetime.now(UTC).timestamp()
    since = parse_since(text) / 1000
    after = datetime.now(UTC).timestamp()

    assert before - 0.001 <= since + seconds <= after


def test_all_conditions_of_a_selection_must_match():
    """A filter selects dead letters that match all conditions, and its limit keeps the first failures."""
    letters = [as_read(letter(n, at_ms=NOON - n), n) for n in range(4)]
    choice = DeadLetterFilter(
        (parse_position("0:1"), parse_position("0:1"), DeadLetterPosition(0, 3)), NOON - 2, ("ValueError",)
    )

    assert [one.record.offset for one in letters if choice.matches(one)] == [1]
    assert [one.record.offset for one in DeadLetterFilter(limit=2).sort_and_limit(letters)] == [3, 2]
