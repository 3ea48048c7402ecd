"""Cluster metadata, built from responses."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.cluster_metadata import ClusterMetadata, ExpectedBroker, Leadership, is_other_log
from tailrace.error_codes import ErrorCode
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)
ONE = TopicPartition("t", 0)
BROKERS = tuple(BrokerMetadata(n, f"host{n}", 9092) for n in (1, 2, 3))


def answer(
    *leaders: tuple[int, int], name: str | None = "t", topic_id: UUID = FIRST_ID, error_code: int = 0
) -> MetadataResponse:
    """Return metadata of one topic whose partitions have these (leader, epoch)."""
    partitions = tuple(
        PartitionMetadata(0, n, leader, epoch, (1, 2, 3), (1, 2), (3,)) for n, (leader, epoch) in enumerate(leaders)
    )
    topic = TopicMetadata(error_code, name, topic_id, partitions=partitions)
    return MetadataResponse(BROKERS, (topic,), cluster_id="cluster", controller_id=2)


def test_answer_sets_brokers_topics_and_leaders():
    """A response sets brokers, topics with their ids, and leaders."""
    topology = ClusterMetadata().updated(answer((1, 5), (2, 6)))

    assert topology.brokers[2].host == "host2"
    assert (topology.cluster_id, topology.controller_id) == ("cluster", 2)
    assert topology.leader(ONE) == Leadership(1, 5, (1, 2, 3), (3,), (1, 2))
    assert topology.leader(TopicPartition("t", 1)).leader_id == 2
    assert topology.topic_id("t") == FIRST_ID
    assert topology.partition_counts(["t", "other"]) == {"t": 2}


def test_unknown_topic_has_no_leader_and_no_id():
    """An unknown topic has no leader and no id, and an unknown partition has no leader."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.leader(TopicPartition("t", 7)) is None
    assert topology.leader(TopicPartition("other", 0)) is None
    assert topology.topic_id("other") == UUID(int=0)


def test_only_a_known_topic_can_be_recreated():
    """A topic counts as recreated only if the metadata has another id for it, and not if it is missing."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert is_other_log(SECOND_ID, ONE, topology)
    assert not is_other_log(FIRST_ID, ONE, topology)
    assert not is_other_log(SECOND_ID, TopicPartition("other", 0), topology)
    assert not is_other_log(None, ONE, topology)


def test_older_leader_epoch_is_ignored():
    """An older leader epoch from a broker with outdated metadata is ignored (KIP-320)."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.updated(answer((2, 4))).leader(ONE).leader_id == 1
    assert topology.updated(answer((2, 6))).leader(ONE).leader_id == 2
    # The same epoch is accepted: replicas may have changed.
    assert topology.updated(answer((-1, 5))).leader(ONE).leader_id == -1


def test_recreated_topic_starts_new_epochs():
    """Leader epochs of a recreated topic are accepted, however low."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    again = topology.updated(answer((2, 0), topic_id=SECOND_ID))

    assert again.leader(ONE) == Leadership(2, 0, (1, 2, 3), (3,), (1, 2))
    assert again.topic_id("t") == SECOND_ID


def test_answers_without_epochs_are_accepted():
    """Without leader epochs, as before version 7 of Metadata, the newest response counts."""
    topology = ClusterMetadata().updated(answer((1, -1)))

    assert topology.updated(answer((2, -1))).leader(ONE).leader_id == 2
    assert ClusterMetadata().updated(answer((1, 5))).updated(answer((2, -1))).leader(ONE).leader_id == 2


def test_leader_not_available_means_no_leader():
    """A partition with LEADER_NOT_AVAILABLE has no leader, and others of its topic keep theirs."""
    partitions = (
        PartitionMetadata(ErrorCode.LEADER_NOT_AVAILABLE, 0, 1, 6),
        PartitionMetadata(0, 1, 2, 6),
    )
    topology = ClusterMetadata().updated(
        MetadataResponse(BROKERS, (TopicMetadata(0, "t", FIRST_ID, partitions=partitions),))
    )

    assert topology.leader(ONE).leader_id == -1
    assert topology.leader(TopicPartition("t", 1)).leader_id == 2


def test_error_of_a_requested_topic_is_kept():
    """The error of a requested topic is kept until the topic is available."""
    refused = ClusterMetadata().updated(answer(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    assert refused.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert refused.partition_counts(["t"]) == {}
    assert refused.updated(answer((1, 0))).errors == {}


def test_topics_missing_in_a_response_are_removed():
    """Topics that a response omits, or that have no name, are removed."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.updated(answer((1, 5), name="u")).topics.keys() == {"u"}
    assert topology.updated(answer((1, 5), name=None)).topics == {}


def test_metadata_are_immutable():
    """A response yields a new object, and does not change the old one."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    topology.updated(answer((2, 6)))
    topology.with_leader(ONE, 3, 7)

    assert topology.leader(ONE).leader_id == 1
    with pytest.raises(TypeError):
        topology.topics["u"] = topology.topics["t"]


# ---- leaders in fetch responses (KIP-951) ----------------------------------------------------------------------


def test_newer_leader_in_a_fetch_answer_is_adopted():
    """A newer leader in a fetch response is adopted without a metadata request, and replicas are kept."""
    topology = ClusterMetadata(hides_internal=False).updated(answer((1, 5), (2, 5)))

    learnt = topology.with_leader(ONE, 3, 6)

    assert learnt.leader(ONE) == Leadership(3, 6, (1, 2, 3), (3,), (1, 2))
    assert learnt.leader(TopicPartition("t", 1)) == topology.leader(TopicPartition("t", 1))
    assert replace(learnt, topics=topology.topics) == topology, "nothing else has changed"
    # An older response does not set the leader back.
    assert learnt.updated(answer((1, 5), (2, 5))).leader(ONE).leader_id == 3


@pytest.mark.parametrize(
    ("partition", "leader_id", "epoch"),
    [(ONE, 2, 5), (ONE, 2, 4), (ONE, 2, -1), (ONE, -1, 6), (ONE, 9, 6), (TopicPartition("u", 0), 2, 6)],
    ids=["same epoch", "older", "none", "no leader", "unknown broker", "unknown topic"],
)
def test_outdated_or_unknown_leader_changes_nothing(partition, leader_id, epoch):
    """with_leader() returns the same object for an epoch that is not newer, and an unknown broker or partition."""
    topology = ClusterMetadata().updated(answer((1, 5)))

    assert topology.with_leader(partition, leader_id, epoch) is topology


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([1, 2, 3]), st.integers(0, 9)), max_size=20))
def test_leader_epochs_never_decrease(answers):
    """Leader epochs never decrease, in any order of metadata and fetch responses."""
    topology = ClusterMetadata().updated(answer((1, 0)))

    for is_hint, leader, epoch in answers:
        before = topology.leader(ONE)
        topology = topology.with_leader(ONE, leader, epoch) if is_hint else topology.updated(answer((leader, epoch)))
        after = topology.leader(ONE)
        assert after.epoch == max(before.epoch, epoch)
        assert after.leader_id == leader or after == before


# ---- broker that a connection has reached ----------------------------------------------------------------------

PAIR = {1: ("a", 9092), 2: ("b", 9092)}


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "brokers", "found"),
    [
        pytest.param(1, "ours", PAIR, "", id="it is the broker"),
        pytest.param(1, "theirs", PAIR, "a broker of cluster theirs", id="another cluster"),
        pytest.param(2, "ours", PAIR, "broker 1", id="the address is now another node's"),
        pytest.param(-1, "ours", PAIR, "", id="any node of the cluster is right"),
        pytest.param(-1, "theirs", PAIR, "a broker of cluster theirs", id="any node of another cluster is wrong"),
        pytest.param(3, "ours", {3: ("a", 1)}, "", id="a node that moves has no address yet"),
        pytest.param(2, "ours", {1: ("a", 9092), 2: ("a", 9092)}, "", id="shared address"),
        pytest.param(1, None, PAIR, "", id="a service without cluster ids"),
    ],
)
def test_a_connection_reaches_the_expected_broker_or_names_another(node_id, cluster_id, brokers, found):
    """Another broker is named only if the metadata of the connection proves it."""
    assert ExpectedBroker("ours", node_id).mismatch(cluster_id, brokers, ("a", 9092)) == found
