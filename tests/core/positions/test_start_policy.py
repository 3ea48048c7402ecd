"""Start of a partition: the user's choice, the committed offset, or the reset policy."""

from __future__ import annotations

from uuid import UUID

import pytest

from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.core.positions.start_policy import StartPolicy
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
    """The precedence is the same for partitions assigned by the group and by the user."""
    policy = subscribed(LATEST)

    assert policy.start_of_subscribed(ONE, topology(), COMMITTED) == COMMITTED
    assert policy.start_of_assigned(None, COMMITTED) == COMMITTED


def test_reset_policy_decides_without_a_committed_offset():
    """The policy decides for partitions that existed at the subscription, and for those assigned by the user."""
    policy = subscribed(LATEST)

    assert policy.start_of_subscribed(ONE, topology()) == LATEST
    assert policy.start_of_assigned(None, None) == LATEST


@pytest.mark.parametrize("start", [0, 12, EARLIEST, HOUR_AGO], ids=str)
def test_start_of_the_user_comes_first(start):
    """Offset 0, too."""
    assert subscribed(LATEST).start_of_assigned(start, COMMITTED) == start


def test_reset_offset_on_start_comes_before_a_committed_offset():
    """The option also applies to partitions added since the subscription."""
    policy = subscribed(LATEST)

    for partition in (ONE, ADDED):
        assert (
            policy.start_of_subscribed(partition, topology(partitions=2), COMMITTED, ignores_committed=True) == LATEST
        )


@pytest.mark.parametrize(("reset", "start"), [(LATEST, EARLIEST), (EARLIEST, EARLIEST), (NONE, NONE), (HOUR_AGO,) * 2])
def test_added_partition_is_not_read_from_its_end(reset, start):
    """Records of an added partition or a recreated topic were written while the consumer was subscribed."""
    policy = subscribed(reset)

    assert policy.start_of_subscribed(ADDED, topology(partitions=2)) == start
    assert policy.start_of_subscribed(ONE, topology(NEW_ID)) == start
    assert policy.start_of_added(ONE) == start


def test_topics_read_whole_ignore_the_reset_policy():
    """A group reads the records it sends to itself from the first one, or from its committed offset."""
    policy = subscribed(LATEST, frozenset({"orders"}))

    assert policy.start_of_subscribed(ONE, topology()) == EARLIEST
    assert policy.start_of_subscribed(ONE, topology(), COMMITTED, ignores_committed=True) == COMMITTED
    assert policy.start_after_reset(ONE) == EARLIEST


def test_offset_of_a_deleted_topic_is_not_used_for_the_recreated_one():
    """Only the offset that this member committed is known to belong to the deleted topic."""
    policy, recreated = subscribed(LATEST), topology(NEW_ID)

    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (OLD_ID, COMMITTED.offset)) == EARLIEST
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (OLD_ID, COMMITTED.offset - 1)) == COMMITTED
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED, (NEW_ID, COMMITTED.offset)) == COMMITTED
    assert policy.start_of_subscribed(ONE, recreated, COMMITTED) == COMMITTED


def test_position_out_of_range_is_reset_by_the_policy():
    """The policy decides also with "latest": the partition is not a new one."""
    assert subscribed(LATEST).start_after_reset(ADDED) == LATEST


def test_no_partition_counts_as_added_before_a_subscription():
    """The topics are unknown then."""
    assert StartPolicy(LATEST).start_of_subscribed(ADDED, topology(partitions=2)) == LATEST
