"""The cluster, as its answers tell it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.cluster_metadata import ClusterMetadata, Leadership, is_other_log
from tailrace.error_codes import ErrorCode
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)
ONE = TopicPartition("t", 0)
BROKERS = tuple(BrokerMetadata(n, f"host{n}", 9092) for n in (1, 2, 3))


def answer(
    *leaders: tuple[int, int], name: str | None = "t", topic_id: UUID = FIRST_ID, error_code: int = 0
) -> MetadataResponse:
    """Of one topic, whose partitions are led by so many (broker, epoch)."""
    partitions = tuple(
        PartitionMetadata(0, n, leader, epoch, (1, 2, 3), (1, 2), (3,)) for n, (leader, epoch) in enumerate(leaders)
    )
    topic = TopicMetadata(error_code, name, topic_id, partitions=partitions)
    return MetadataResponse(BROKERS, (topic,), cluster_id="cluster", controller_id=2)


def test_an_answer_is_taken_in():
    """Brokers, topics with their ids, partitions and their leaders."""
    topology = ClusterMetadata().updated(answer((1, 5), (2, 6)))

    assert topology.brokers[2].host == "host2"
    assert (topology.cluster_id, topology.controller_id) == ("cluster", 2)
    assert topology.leader(ONE) == Leadership(1, 5, (1, 2, 3), (3,))
    assert topology.leader(TopicPartition("t", 1)).leader_id == 2
    assert topology.topic_id("t") == FIRST_ID
    assert topology.partitions_of(["t", "other"]) == {"t": 2}


def test_what_is_not_known_is_none():
    """Of a topic or partition that nobody told of there is no leader and no id."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.leader(TopicPartition("t", 7)) is None
    assert topology.leader(TopicPartition("other", 0)) is None
    assert topology.topic_id("other") == UUID(int=0)


def test_only_a_topic_that_is_known_can_have_been_recreated():
    """A topic that metadata lack may have been deleted, or the broker has not heard of it yet."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert is_other_log(SECOND_ID, ONE, topology)
    assert not is_other_log(FIRST_ID, ONE, topology)
    assert not is_other_log(SECOND_ID, TopicPartition("other", 0), topology)
    assert not is_other_log(None, ONE, topology)


def test_an_older_epoch_never_wins():
    """A broker that lags behind does not take leadership back (KIP-320)."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.updated(answer((2, 4))).leader(ONE).leader_id == 1
    assert topology.updated(answer((2, 6))).leader(ONE).leader_id == 2
    # The same epoch is news all the same: replicas may have come or gone.
    assert topology.updated(answer((-1, 5))).leader(ONE).leader_id == -1


def test_a_topic_made_anew_begins_its_epochs_anew():
    """Another id is another topic, whatever its name and however small its epochs."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    again = topology.updated(answer((2, 0), topic_id=SECOND_ID))

    assert again.leader(ONE) == Leadership(2, 0, (1, 2, 3), (3,))
    assert again.topic_id("t") == SECOND_ID


def test_brokers_without_epochs_are_believed():
    """Before Metadata 7 there is no epoch (-1), and the newest answer is all there is."""
    topology = ClusterMetadata().updated(answer((1, -1)))

    assert topology.updated(answer((2, -1))).leader(ONE).leader_id == 2
    assert ClusterMetadata().updated(answer((1, 5))).updated(answer((2, -1))).leader(ONE).leader_id == 2


def test_a_partition_without_a_leader_has_none():
    """LEADER_NOT_AVAILABLE is told of one partition, while others go on."""
    partitions = (
        PartitionMetadata(ErrorCode.LEADER_NOT_AVAILABLE, 0, 1, 6),
        PartitionMetadata(0, 1, 2, 6),
    )
    topology = ClusterMetadata().updated(
        MetadataResponse(BROKERS, (TopicMetadata(0, "t", FIRST_ID, partitions=partitions),))
    )

    assert topology.leader(ONE).leader_id == -1
    assert topology.leader(TopicPartition("t", 1)).leader_id == 2


def test_a_refused_topic_is_remembered_with_its_error():
    """What was asked for and refused is not simply absent; when it is there it is refused no more."""
    refused = ClusterMetadata().updated(answer(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    assert refused.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert refused.partitions_of(["t"]) == {}
    assert refused.updated(answer((1, 0))).errors == {}


def test_what_an_answer_says_nothing_of_is_dropped():
    """A topic that nobody asks for any more is forgotten, and so is one without a name."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.updated(answer((1, 5), name="u")).topics.keys() == {"u"}
    assert topology.updated(answer((1, 5), name=None)).topics == {}


def test_a_topology_is_never_changed():
    """Whoever holds one may go on reading it while newer ones are made."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    topology.updated(answer((2, 6)))
    topology.with_leader(ONE, 3, 7)

    assert topology.leader(ONE).leader_id == 1
    with pytest.raises(TypeError):
        topology.topics["u"] = topology.topics["t"]


# ---- leaders told by the way (KIP-951) -------------------------------------------------------------------------


def test_a_newer_leader_is_learnt_by_the_way():
    """The broker that refuses a fetch says who leads now: no look-up is needed, and replicas stay as they were."""
    topology = ClusterMetadata(hides_internal=False).updated(answer((1, 5), (2, 5)))

    learnt = topology.with_leader(ONE, 3, 6)

    assert learnt.leader(ONE) == Leadership(3, 6, (1, 2, 3), (3,))
    assert learnt.leader(TopicPartition("t", 1)) == topology.leader(TopicPartition("t", 1))
    assert replace(learnt, topics=topology.topics) == topology, "nothing else is other than before"
    # An answer from before that does not take it back.
    assert learnt.updated(answer((1, 5), (2, 5))).leader(ONE).leader_id == 3


@pytest.mark.parametrize(
    ("partition", "leader_id", "epoch"),
    [(ONE, 2, 5), (ONE, 2, 4), (ONE, 2, -1), (ONE, -1, 6), (ONE, 9, 6), (TopicPartition("u", 0), 2, 6)],
    ids=["same epoch", "older", "none", "no leader", "unknown broker", "unknown topic"],
)
def test_what_is_no_news_changes_nothing(partition, leader_id, epoch):
    """An epoch that is not newer, a broker or a partition that is not known: the topology is the same."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.with_leader(partition, leader_id, epoch) is topology


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([1, 2, 3]), st.integers(0, 9)), max_size=20))
def test_epochs_only_grow(told):
    """However answers and hints come in, what is known of a partition moves forward only."""
    topology = ClusterMetadata().updated(answer((1, 0)))

    for is_hint, leader, epoch in told:
        before = topology.leader(ONE)
        topology = topology.with_leader(ONE, leader, epoch) if is_hint else topology.updated(answer((leader, epoch)))
        after = topology.leader(ONE)
        assert after.epoch == max(before.epoch, epoch)
        assert after.leader_id == leader or after == before
