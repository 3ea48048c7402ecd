"""Metrics of a cluster's groups as Prometheus scrapes them, compared with Kafka's own tool."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tailrace import ConfigurationError, Consumer, TopicPartition
from tailrace.admin.cluster_snapshot import cluster_snapshot
from tailrace.config import resolve
from tailrace.integrations.cluster_exporter import ClusterExporter, name_filter, serve_exporter
from tailrace.net.cluster import Cluster
from tests.support.admin_tools import KafkaTool, Reached, commit_to
from tests.support.loop_timer import LoopTimer

Values: TypeAlias = dict[str, dict[tuple[str, ...], float]]

EVERYTHING = name_filter(re.compile(""))


@pytest.fixture
def slow_machine(monkeypatch):
    """Let a scrape take as long as a slow machine needs in addition to the collection."""
    monkeypatch.setattr("tailrace.integrations.cluster_exporter._OVERHEAD_S", 20.0)


@asynccontextmanager
async def exporting(bootstrap_servers: str, *, topics="", groups="", timeout_s=8.0, **options):
    """Serve the metrics of accepted names, and return a function that scrapes them."""
    cluster = Cluster(resolve({"bootstrap_servers": bootstrap_servers, **options}))
    exporter = ClusterExporter(
        cluster, topics=name_filter(re.compile(topics)), groups=name_filter(re.compile(groups)), timeout_s=timeout_s
    )
    try:
        async with (
            serve_exporter(exporter, port=0, host="127.0.0.1") as server,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client,
        ):

            async def scrape(path: str = "/metrics") -> httpx.Response:
                return await client.get(path)

            yield scrape
    finally:
        cluster.close()


def values_of(answer: httpx.Response) -> Values:
    """Return the values by metric and the values of its labels, sorted by label."""
    assert answer.status_code == 200, answer.text
    found: Values = {}
    for family in text_string_to_metric_families(answer.text):
        for one in family.samples:
            key = tuple(value for _, value in sorted(one.labels.items()))
            assert key not in found.setdefault(one.name, {})
            found[one.name][key] = one.value
    return found


def produce(bootstrap_servers: str, topic: str, counts: dict[int, int]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for partition, count in counts.items():
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition)
    assert producer.flush(20) == 0


async def test_figures_are_those_of_kafkas_tool(kafka_server, name, group):
    """Offsets, ends and lag of each partition equal those of kafka-consumer-groups."""
    servers, topic = kafka_server.bootstrap_servers, f"{name}.orders_eu.v1"
    kafka_server.create_topic(topic, 3)
    produce(servers, topic, {0: 12, 1: 5, 2: 3})
    commit_to(servers, group, topic, {0: 4, 1: 5})

    async with exporting(servers, topics=re.escape(topic), groups=group) as scrape:
        values = values_of(await scrape())
    rows = await asyncio.to_thread(KafkaTool(servers).rows, "--describe", "--group", group, "--offsets")

    assert {row["PARTITION"] for row in rows} >= {"0", "1"}
    for row in rows:
        key = (group, row["PARTITION"], row["TOPIC"])
        end = values["kafka_topic_partition_current_offset"][key[1:]]
        assert f"{end:.0f}" == row["LOG-END-OFFSET"]
        offset, lag = (values[f"kafka_consumergroup_{metric}"][key] for metric in ("current_offset", "lag"))
        assert (f"{offset:.0f}", f"{lag:.0f}") == (row["CURRENT-OFFSET"], row["LAG"])
    assert values["kafka_consumergroup_lag"] == {
        (group, "0", topic): 8,
        (group, "1", topic): 0,
        (group, "2", topic): -1,
    }
    assert values["kafka_consumergroup_lag_sum"] == {(group, topic): 8}
    assert values["kafka_consumergroup_current_offset_sum"] == {(group, topic): 9}
    assert values["kafka_consumergroup_members"] == {(group,): 0}
    assert values["kafka_topic_partitions"] == {(topic,): 3}
    assert values["kafka_brokers"] == {(): 1}
    assert values["tailrace_exporter_failures"] == {(): 0}
    assert "python_info" in values


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
async def test_members_and_commits_of_a_running_group_are_current(kafka_server, new_topic, group, group_protocol):
    """Each scrape returns the current lag and number of members, in both protocols."""
    topic = new_topic(2)
    produce(kafka_server.bootstrap_servers, topic, {0: 6, 1: 1})

    async with (
        exporting(kafka_server.bootstrap_servers, topics=topic, groups=group) as scrape,
        Consumer(
            topic,
            bootstrap_servers=kafka_server.bootstrap_servers,
            group_id=group,
            group_protocol=group_protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        await consumer.assigned()
        before = values_of(await scrape())
        await consumer.commit({TopicPartition(topic, 0): 2})
        middle = values_of(await scrape())
        await consumer.commit({TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 1})
        after = values_of(await scrape())

    assert before["kafka_consumergroup_members"] == {(group,): 1}
    assert "kafka_consumergroup_lag" not in before
    assert middle["kafka_consumergroup_lag"] == {(group, "0", topic): 4, (group, "1", topic): -1}
    assert after["kafka_consumergroup_lag"] == {(group, "0", topic): 0, (group, "1", topic): 0}


async def test_names_are_filtered(kafka_server, name, group):
    """Only topics and groups that match the pattern and no exclusion are served."""
    servers = kafka_server.bootstrap_servers
    for suffix in ("a", "b"):
        kafka_server.create_topic(f"{name}-{suffix}")
    for suffix in ("a", "b"):
        commit_to(servers, f"{group}-{suffix}", f"{name}-a", {0: 0})
        commit_to(servers, f"{group}-{suffix}", f"{name}-b", {0: 0})
    topics = name_filter(re.compile(name[3:]), re.compile("-b$"))
    groups = name_filter(re.compile(f"{group[3:]}-[ab]"), re.compile("-a$"))

    async with Reached(resolve({"bootstrap_servers": servers})) as cluster:
        snapshot = await cluster_snapshot(cluster, topics=topics, groups=groups, timeout_s=8)

    assert set(snapshot.partitions) == {TopicPartition(f"{name}-a", 0)}
    assert set(snapshot.groups) == {f"{group}-b"}


async def test_scrapes_at_the_same_time_share_one_collection(kafka_server, slow_machine, monkeypatch):
    """Concurrent scrapes share one collection, and a later scrape makes another one."""
    count, callers, all_wait, collect = 0, 0, asyncio.Event(), ClusterExporter.collect

    async def called(exporter):
        nonlocal callers
        callers += 1
        if callers == 10:
            all_wait.set()
        return await collect(exporter)

    async def counted(*arguments, **keywords):
        nonlocal count
        count += 1
        await all_wait.wait()
        return await cluster_snapshot(*arguments, **keywords)

    monkeypatch.setattr(ClusterExporter, "collect", called)
    monkeypatch.setattr("tailrace.integrations.cluster_exporter.cluster_snapshot", counted)
    async with exporting(kafka_server.bootstrap_servers) as scrape:
        answers = await asyncio.gather(*(scrape() for _ in range(10)))
        at_once = count
        again = await scrape()

    assert {one.status_code for one in (*answers, again)} == {200}
    assert (at_once, count) == (1, 2)


async def test_an_unreachable_cluster_is_503_in_words_within_the_time_limit(slow_machine):
    """If the cluster does not answer, a scrape returns 503 with the address in time."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for address in (silent.getsockname()[1], unused.getsockname()[1]):
            async with exporting(f"127.0.0.1:{address}", timeout_s=2) as scrape:
                in_time = LoopTimer(2)
                answers = await asyncio.gather(scrape(), scrape(), scrape())
                late_s = in_time.late_s
                healthy, ready = await scrape("/healthz"), await scrape("/readyz")

            assert {one.status_code for one in answers} == {503}
            assert answers[0].text.startswith("no metrics: no broker")
            assert str(address) in answers[0].text
            assert late_s < 1
            assert (healthy.text, healthy.status_code, ready.status_code) == ("ok\n", 200, 200)


async def test_a_port_in_use_is_a_clear_error(kafka_server):
    """A port in use raises an error with the port and what to do."""
    cluster = Cluster(resolve({"bootstrap_servers": kafka_server.bootstrap_servers}))
    exporter = ClusterExporter(cluster, topics=EVERYTHING, groups=EVERYTHING, timeout_s=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot serve HTTP at 127.0.0.1:{port}.*choose another port"):
            async with serve_exporter(exporter, port=port, host="127.0.0.1"):
                pass
    cluster.close()


async def test_scrapes_answer_while_a_broker_hangs_and_is_killed(kafka_cluster, name, slow_machine):
    """While a broker does not answer, the figures of the others are served and the failure is counted."""
    brokers = kafka_cluster(3, config={"offsets.topic.num.partitions": 6})
    servers, groups = brokers.bootstrap_servers, [f"{name}-{number}" for number in range(6)]
    brokers.create_topic(name, 6, replication_factor=3)
    produce(servers, name, dict.fromkeys(range(6), 10))
    for group in groups:
        commit_to(servers, group, name, dict.fromkeys(range(6), 4))
    expected = {(group, str(number), name): 6.0 for group in groups for number in range(6)}
    victim = brokers.leader_of(name, 0)
    latest_s = 0.0

    async with exporting(servers, topics=name, groups=name, timeout_s=4) as scrape:
        assert values_of(await scrape())["kafka_consumergroup_lag"] == expected

        async def watch(is_over: Callable[[Values, bool], bool]) -> Values:
            """Scrape until the predicate is true for the values and their completeness."""
            nonlocal latest_s
            async with asyncio.timeout(60):
                while True:
                    in_time = LoopTimer(4)
                    values = values_of(await scrape())
                    latest_s = max(latest_s, in_time.late_s)
                    lags = values.get("kafka_consumergroup_lag", {})
                    assert lags.items() <= expected.items(), "a figure that is served is right"
                    is_complete = lags == expected
                    if is_over(values, is_complete):
                        return values
                    await asyncio.sleep(0.1)

        victim.pause()
        hung = await watch(lambda _, is_complete: not is_complete)
        victim.resume()
        await watch(lambda _, is_complete: is_complete)
        victim.kill()
        healed = await watch(lambda values, is_complete: is_complete and values["kafka_brokers"] == {(): 2})

    assert 0 < len(hung.get("kafka_consumergroup_lag", {})) < len(expected)
    assert hung["tailrace_exporter_failures"][()] > 0
    assert set(healed["kafka_topic_partition_under_replicated_partition"].values()) == {1}
    assert str(victim.node_id) not in {node_id for _, node_id in healed["kafka_broker_info"]}
    assert latest_s < 1.5
