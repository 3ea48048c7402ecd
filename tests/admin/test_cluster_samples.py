"""Metrics of kafka_exporter from a snapshot."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tailrace import TopicPartition
from tailrace.admin.cluster_samples import (
    CLUSTER_METRICS,
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    cluster_samples,
)


def led(begin: int | None = 0, end: int | None = 0) -> PartitionSnapshot:
    return PartitionSnapshot(1, (1, 2), (1, 2), begin, end)


def found(snapshot: ClusterSnapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by metric and label values."""
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for one in cluster_samples(snapshot):
        key = tuple(one.labels.values())
        assert key not in values.setdefault(one.metric, {})
        values[one.metric][key] = one.value
    return values


def test_a_group_has_lag_in_the_topics_that_it_has_committed():
    """In a topic with commits, a partition without one has offset and lag -1, which the sums exclude."""
    snapshot = ClusterSnapshot(
        {},
        {
            TopicPartition("orders", 0): led(2, 10),
            TopicPartition("orders", 1): led(0, 4),
            TopicPartition("other", 0): led(0, 7),
        },
        {"billing": GroupSnapshot(0, {TopicPartition("orders", 0): 3})},
    )

    values = found(snapshot)

    assert values["kafka_consumergroup_members"] == {("billing",): 0}
    assert values["kafka_consumergroup_current_offset"] == {
        ("billing", "orders", "0"): 3,
        ("billing", "orders", "1"): -1,
    }
    assert values["kafka_consumergroup_lag"] == {("billing", "orders", "0"): 7, ("billing", "orders", "1"): -1}
    assert values["kafka_consumergroup_current_offset_sum"] == {("billing", "orders"): 3}
    assert values["kafka_consumergroup_lag_sum"] == {("billing", "orders"): 7}
    assert values["kafka_topic_partition_oldest_offset"][("orders", "0")] == 2
    assert values["kafka_topic_partitions"] == {("orders",): 2, ("other",): 1}


def test_unknown_values_have_no_samples():
    """Unknown values have no samples: those of a partition without a leader, and of a group that did not respond."""
    one = TopicPartition("orders", 0)
    snapshot = ClusterSnapshot(
        {1: "kafka:9092"},
        {one: PartitionSnapshot(-1, (3, 1), (3,))},
        {"read": GroupSnapshot(None, {one: 5}), "silent": GroupSnapshot(2, None)},
        ("orders[0] has no leader",),
    )

    values = found(snapshot)

    assert values["kafka_broker_info"] == {("1", "kafka:9092"): 1}
    assert values["kafka_consumergroup_members"] == {("silent",): 2}
    assert values["kafka_consumergroup_current_offset"] == {("read", "orders", "0"): 5}
    assert values["kafka_consumergroup_lag_sum"] == {("read", "orders"): 0}
    assert values["kafka_topic_partition_under_replicated_partition"] == {("orders", "0"): 1}
    assert values["kafka_topic_partition_leader_is_preferred"] == {("orders", "0"): 0}
    assert values["tailrace_exporter_failures"] == {(): 1}
    absent = {"kafka_consumergroup_lag", "kafka_topic_partition_leader", "kafka_topic_partition_current_offset"}
    assert not absent & values.keys()


def test_leader_and_replicas():
    """The first replica is the preferred leader; a partition is under-replicated if a replica is not in sync."""
    partitions = {
        TopicPartition("t", 0): PartitionSnapshot(2, (2, 3, 1), (2, 3, 1)),
        TopicPartition("t", 1): PartitionSnapshot(3, (2, 3, 1), (3, 1)),
    }

    values = found(ClusterSnapshot({}, partitions, {}))

    def by_partition(metric: str) -> list[float]:
        return [values[f"kafka_topic_partition_{metric}"]["t", str(number)] for number in (0, 1)]

    assert by_partition("leader") == [2, 3]
    assert by_partition("replicas") == [3, 3]
    assert by_partition("in_sync_replica") == [3, 2]
    assert by_partition("leader_is_preferred") == [1, 0]
    assert by_partition("under_replicated_partition") == [0, 1]


def test_offsets_in_deleted_topics_have_no_samples():
    """Committed offsets of a deleted topic have no samples."""
    snapshot = ClusterSnapshot({}, {}, {"g": GroupSnapshot(1, {TopicPartition("gone", 0): 5})})

    assert found(snapshot).keys() == {"kafka_brokers", "kafka_consumergroup_members", "tailrace_exporter_failures"}


OFFSETS = st.none() | st.integers(0, 100)


@given(st.lists(st.tuples(OFFSETS, OFFSETS), min_size=1, max_size=5))
def test_the_lag_sum_counts_known_lags_only(offsets):
    """No lag is below -1, even after the log was truncated, and the sum is that of the known lags."""
    partitions = {TopicPartition("t", n): led(0, end) for n, (_, end) in enumerate(offsets)}
    committed = {TopicPartition("t", n): offset for n, (offset, _) in enumerate(offsets) if offset is not None}

    values = found(ClusterSnapshot({}, partitions, {"g": GroupSnapshot(0, committed)}))

    lags = values.get("kafka_consumergroup_lag", {}).values()
    assert all(lag >= -1 for lag in lags)
    assert bool(committed) == ("kafka_consumergroup_lag_sum" in values)
    assert sum(lag for lag in lags if lag > 0) == values.get("kafka_consumergroup_lag_sum", {}).get(("g", "t"), 0)
    assert values.keys() <= CLUSTER_METRICS.keys()


# Queries and variables of "Kafka Exporter Overview", the Grafana dashboard 7589.
DASHBOARD = (
    'sum(rate(kafka_topic_partition_current_offset{instance="$instance", topic=~"$topic"}[1m])) by (topic)',
    'sum(kafka_consumergroup_lag{instance="$instance",topic=~"$topic"}) by (consumergroup, topic)',
    """sum(delta(kafka_topic_partition_current_offset{instance=~'$instance', topic=~"$topic"}[5m])/5) by (topic)""",
    """sum(delta(kafka_consumergroup_current_offset{instance=~'$instance',topic=~"$topic"}[5m])) by (consumergroup)""",
    'sum by(topic) (kafka_topic_partitions{instance="$instance",topic=~"$topic"})',
    "label_values(kafka_consumergroup_current_offset, job)",
    "label_values(kafka_topic_partition_current_offset{instance='$instance',topic!='__consumer_offsets'}, topic)",
)
OF_PROMETHEUS = {"instance", "job"}


def test_the_dashboard_of_kafka_exporter_finds_its_metrics_and_labels():
    """All metrics and labels of the dashboard of kafka_exporter exist."""
    one = TopicPartition("t", 0)
    snapshot = ClusterSnapshot({1: "kafka:9092"}, {one: led(0, 3)}, {"g": GroupSnapshot(1, {one: 1})})
    labels = {sample.metric: sample.labels.keys() | OF_PROMETHEUS for sample in cluster_samples(snapshot)}

    assert labels.keys() == CLUSTER_METRICS.keys()
    for query in DASHBOARD:
        (metric,) = re.findall(r"kafka_\w+", query)
        asked = re.findall(r"(\w+)(?:=~|!=|=)", query)
        asked += [
            name for names in re.findall(r"by ?\((.*?)\)|, (\w+)\)$", query) for name in ", ".join(names).split(", ")
        ]
        assert set(asked) - {""} <= labels[metric], query
