"""Selection of the partitions whose end offsets are requested, as no fetch brings them."""

from __future__ import annotations

from tailrace.consumer.fetch.fetcher import partitions_without_fetch
from tailrace.consumer.fetch.plan import FetchConnection, FetchLimits, FetchSources, make_plan
from tailrace.consumer.partition import AssignedPartitions, BufferSpace
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

PAUSED, READ, STARTING = (TopicPartition("t", n) for n in range(3))


def test_paused_partitions_are_chosen_and_those_in_a_fetch_are_not():
    """End offsets are requested for paused partitions, and not for those in a fetch or not yet fetchable."""
    positions = AssignedPartitions()
    for position in positions.add([PAUSED, READ, STARTING]):
        position.begin(7)
        position.is_fetchable = position.topic_partition != STARTING
        position.is_paused = position.topic_partition == PAUSED
    topic = TopicMetadata(0, "t", partitions=tuple(PartitionMetadata(0, n, 1, 5, (1,), (1,), ()) for n in range(3)))
    topology = ClusterMetadata().updated(MetadataResponse((BrokerMetadata(1, "host", 9092),), (topic,)))
    sources = FetchSources(positions).at(topology)
    plan = make_plan(FetchConnection(1), sources, BufferSpace(10_000), FetchLimits(10_000, 100, 0.5), 0.0)

    assert [one.topic_partition for one in partitions_without_fetch(positions, [plan])] == [PAUSED]
    assert [one.topic_partition for one in partitions_without_fetch(positions, [])] == [PAUSED, READ]
