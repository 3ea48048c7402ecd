"""Start of a partition: the user's start, the committed offset, or the reset policy."""

from __future__ import annotations

from uuid import UUID

import pytest

from tailrace.consumer.positions.start_positions import StartPolicy
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.protocol.metadata import MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import OffsetAndMetadata, TopicPartition

EARLIEST, LATEST, NONE = (StartPoint(one) for one in (StartFrom.EARLIEST, StartFrom.LATEST, StartFrom.NONE))
HOUR_AGO = StartPoint(StartFrom.AGO, 3_600_000)
OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
ONE, ADDED = TopicPartition("orders", 0), TopicPartition("orders", 1)
COMMITTED = OffsetAndMetadata(7, "text", 3)


def topology(topic_id: UUID = OLD_ID, partitions: int = 1) -> ClusterMetadata:
    found = tuple(PartitionMetadata(0, number, 1, 0, (1,), (1,), ()) for number in range(partitions))
    return ClusterMetadata().updated(MetadataResponse((), (TopicMetadata(0, "orders", topic_id, partitions=found),)))


def subscribed(reset: StartPoint, whole: frozenset[str] = frozenset()) -> StartPolicy:
    """Return the policy of a consumer that subscribed to the topic when it had one partition."""
    policy = StartPolicy(reset, whole)
    policy.note_topics(topology().topics)
    return policy


def test_committed_offset_comes_before_the_reset_policy():
    """A committed offset takes precedence over the reset policy, for subscribed and assigned partitions."""
    policy = subscribed(LATEST)

    assert policy.start_of_subscribed(ONE, topology(), COMMITTED) == COMMITTED
    assert policy.start_of_assigned(None, COMMITTED) == COMMITTED


def test_reset_policy_decides_without_a_committed_offset():
    """Without a committed offset, the reset policy decides for subscribed and assigned partitions."""
    policy = subscribed(LATEST)

    assert policy.start_of_subscribed(ONE, topology()) == LATEST
    assert policy.start_of_assigned(None, None) == LATEST


@pytest.mark.parametrize("start", [0, 12, EARLIEST, HOUR_AGO], ids=str)
def test_start_of_the_user_comes_first(start):
    """The user's start takes precedence over a committed offset, even if it is offset 0."""
    assert subscribed(LATEST).start_of_assigned(start, COMMITTED) == start


def test_reset_offset_on_start_comes_before_a_committed_offset():
    """The option reset_offset_on_start takes precedence over a committed offset, also for added partitions."""
    policy = subscribed(LATEST)

    for partition in (ONE, ADDED):
        assert (
            policy.start_of_subscribed(partition, topology(partitions=2), COMMITTED, ignores_committed=True) == LATEST
        )


@pytest.mark.parametrize(("reset", "start"), [(LATEST, EARLIEST), (EARLIEST, EARLIEST), (NONE, NONE), (HOUR_AGO,) * 2])
def test_added_partition_is_not_read_from_its_end(reset, start):
    """An added partition or a recreated topic is read from its beginning if the reset policy is "latest"."""
    policy = subscribed(reset)

    assert policy.start_of_subscribed(ADDED, topology(partitions=2)) == start
    assert policy.start_of_subscribed(ONE, topology(NEW_ID)) == start
    assert policy.start_of_added(ONE) == start


def test_topics_read_whole_ignore_the_reset_policy():
    """A topic that the group writes for itself is read from its first record, or from the committed offset."""
    policy = subscribed(LATEST, frozenset({"orders"}))

    assert policy.start_of_subscribed(ONE, topology()) == EARLIEST
    assert policy.start_of_subscribed(ONE, topology(), COMMITTED, ignores_committed=True) == COMMITTED
    assert policy.start_after_reset(ONE) == EARLIEST


def test_offset_of_a_deleted_topic_is_not_used_for_the_recreated_one():
    """A committed offset is not used for a recreated topic if this member committed it for the deleted one."""
    policy, recreated = subscribed(LATEST), topology(NEW_ID)

    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (OLD_ID, COMMITTED.offset)) == EARLIEST
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (OLD_ID, COMMITTED.offset - 1)) == COMMITTED
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (NEW_ID, COMMITTED.offset)) == COMMITTED
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED) == COMMITTED


def test_position_out_of_range_is_reset_by_the_policy():
    """A position out of range is reset by the policy, also to the end."""
    assert subscribed(LATEST).start_after_reset(ADDED) == LATEST


def test_no_partition_counts_as_added_before_a_subscription():
    """Before a subscription is known, no partition counts as added."""
    assert StartPolicy(LATEST).start_of_subscribed(ADDED, topology(partitions=2)) == LATEST
