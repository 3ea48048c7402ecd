"""Range and round-robin assignors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.consumer.group.range_assignor import SubscribedMember, range_assignor, roundrobin_assignor
from tailrace.records import TopicPartition

TOPICS = "abcd"

MEMBERS = st.lists(st.tuples(st.frozensets(st.sampled_from(TOPICS)), st.booleans()), min_size=1, max_size=6).map(
    lambda found: [
        SubscribedMember(f"m{n}", topics, instance_id=f"i{9 - n}" if is_static else None)
        for n, (topics, is_static) in enumerate(found)
    ]
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))

RACKS = ("r1", "r2")

every = pytest.mark.parametrize("assign", [range_assignor, roundrobin_assignor], ids=["range", "roundrobin"])


def members(*names: str, topics: str = "t") -> list[SubscribedMember]:
    return [SubscribedMember(name, frozenset(topics)) for name in names]


def numbers(given_: dict[str, list[TopicPartition]]) -> dict[str, str]:
    """Return an assignment as text: ``a0 a1 b0``."""
    return {member: " ".join(f"{one.topic}{one.partition}" for one in ones) for member, ones in given_.items()}


# ---- examples of Java ------------------------------------------------------------------------------------------


def test_range_gives_first_members_one_more():
    """Range assigns runs of partitions to members, of which the first may have one more than the others."""
    given_ = range_assignor(members("z", "x", "y"), {"t": 7})

    assert numbers(given_) == {"x": "t0 t1 t2", "y": "t3 t4", "z": "t5 t6"}


def test_range_starts_over_at_each_topic():
    """Range divides each topic on its own, so that the first member may have more partitions in total."""
    given_ = range_assignor(members("x", "y", topics="ab"), {"a": 3, "b": 3})

    assert numbers(given_) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_roundrobin_continues_over_topics():
    """Round-robin assigns the partitions of all topics in turn, so that totals are even."""
    given_ = roundrobin_assignor(members("x", "y", topics="ab"), {"a": 3, "b": 3})

    assert numbers(given_) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


def test_roundrobin_skips_members_without_the_topic():
    """Round-robin skips members that do not subscribe to the topic, as in Java's example."""
    group = [
        SubscribedMember("c0", frozenset({"t0"})),
        SubscribedMember("c1", frozenset({"t0", "t1"})),
        SubscribedMember("c2", frozenset({"t0", "t1", "t2"})),
    ]

    given_ = roundrobin_assignor(group, {"t0": 1, "t1": 2, "t2": 3})

    assert numbers(given_) == {"c0": "t00", "c1": "t10", "c2": "t11 t20 t21 t22"}


@every
def test_static_members_are_ranked_by_instance_id(assign):
    """A static member keeps its rank when it returns with another member id."""
    group = [
        SubscribedMember("a", frozenset("t")),
        SubscribedMember("z", frozenset("t"), "i1"),
        SubscribedMember("y", frozenset("t"), "i2"),
    ]

    assert numbers(assign(group, {"t": 3})) == {"z": "t0", "y": "t1", "a": "t2"}


@every
def test_members_without_partitions_have_an_empty_entry(assign):
    """If there are more members than partitions, members without partitions have an empty entry."""
    assert numbers(assign(members("x", "y", "z"), {"t": 1})) == {"x": "t0", "y": "", "z": ""}


@every
def test_unsubscribed_and_missing_topics_are_not_assigned(assign):
    """Topics that no member subscribes to, or that do not exist, are not assigned."""
    assert numbers(assign(members("x", topics="tu"), {"t": 1, "other": 5})) == {"x": "t0"}
    assert numbers(assign(members("x"), {})) == {"x": ""}


# ---- properties ------------------------------------------------------------------------------------------------


@every
def test_each_partition_has_one_subscribed_owner(assign):
    """Each partition of a topic with a subscriber has one subscribed owner."""

    @given(MEMBERS, COUNTS)
    def check(group, counts):
        given_ = assign(group, counts)

        wanted = {topic for member in group for topic in member.topics}
        owned = Counter(one for ones in given_.values() for one in ones)
        assert owned == Counter(TopicPartition(t, p) for t in wanted & counts.keys() for p in range(counts[t]))
        assert given_.keys() == {member.member_id for member in group}
        assert all(one.topic in member.topics for member in group for one in given_[member.member_id])

    check()


@every
def test_order_of_the_input_does_not_matter(assign):
    """Any order of members and topics yields the same assignment, so any leader computes the same."""

    @given(MEMBERS, COUNTS, st.randoms(use_true_random=False))
    def check(group, counts, random):
        shuffled = random.sample(group, len(group))
        other = dict(random.sample(sorted(counts.items()), len(counts)))

        assert assign(shuffled, other) == assign(group, counts)

    check()


@given(MEMBERS, COUNTS)
def test_range_is_even_within_a_topic(group, counts):
    """Range assigns a run of each topic to each subscriber, and runs differ by one partition at most."""
    given_ = range_assignor(group, counts)

    for topic, count in counts.items():
        shares = [
            [one.partition for one in given_[member.member_id] if one.topic == topic]
            for member in group
            if topic in member.topics
        ]
        if shares:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            assert sum(map(len, shares)) == count
        assert all(share == list(range(share[0], share[0] + len(share))) for share in shares if share)


@given(st.integers(1, 6), COUNTS)
def test_roundrobin_is_even_over_all_topics(size, counts):
    """With equal subscriptions, members differ by one partition at most."""
    group = members(*(f"m{n}" for n in range(size)), topics=TOPICS)

    shares = [len(ones) for ones in roundrobin_assignor(group, counts).values()]

    assert max(shares) - min(shares) <= 1


# ---- racks (KIP-881): examples are what Java's RangeAssignor gives -------------------------------------------------


def in_racks(**racks: str) -> list[SubscribedMember]:
    """Return members by name, each in its rack; none for an empty one."""
    return [SubscribedMember(name, frozenset("ab"), rack=rack or None) for name, rack in racks.items()]


def replicas(**topics: str) -> dict[TopicPartition, frozenset[str]]:
    """Parse the racks of each topic's partitions: ``r1 r2 r1,r2``."""
    return {
        TopicPartition(topic, number): frozenset(racks.split(","))
        for topic, partitions in topics.items()
        for number, racks in enumerate(partitions.split())
    }


def test_range_prefers_near_partitions():
    """Range assigns partitions in a member's rack up to the member's share; the others are cut into runs."""
    given_ = range_assignor(in_racks(x="r1", y="r2"), {"a": 5}, replicas(a="r2 r2 r1 r2 r1"))

    assert numbers(given_) == {"x": "a2 a4", "y": "a0 a1 a3"}


def test_range_shares_stay_even_in_racks():
    """A member gets no more than its share, even if nearly all replicas are in its rack."""
    given_ = range_assignor(in_racks(x="r2", y="r1", z="r2"), {"a": 6}, replicas(a="r1 r1 r1 r1 r1 r3"))

    assert numbers(given_) == {"x": "a2 a3", "y": "a0 a1", "z": "a4 a5"}


def test_range_keeps_equal_numbers_together():
    """Topics of equal size and members are divided alike; a partition is near if it is near in all of them."""
    racks = replicas(a="r2 r1 r1 r2", b="r2 r1 r2 r1")

    given_ = range_assignor(in_racks(x="r1", y="r2"), {"a": 4, "b": 4}, racks)

    assert numbers(given_) == {"x": "a1 a2 b1 b2", "y": "a0 a3 b0 b3"}


def test_range_assigns_equal_topics_by_number():
    """A partition that is near in only one of several equal topics counts as far."""
    racks = replicas(a="r2 r2 r2 r4 r1 r1 r1", b="r2 r2 r2 r1 r1 r1 r1")

    given_ = range_assignor(in_racks(x="r1", y="r2", z="r3"), {"a": 7, "b": 7}, racks)

    assert numbers(given_) == {"x": "a4 a5 b4 b5", "y": "a0 a1 a2 b0 b1 b2", "z": "a3 a6 b3 b6"}


def test_range_ignores_racks_of_topics_where_they_make_no_difference():
    """A topic with all replicas in one rack is divided into runs."""
    given_ = range_assignor(in_racks(x="r2", y="r1"), {"a": 3, "b": 2}, replicas(a="r1 r1 r2", b="r1 r1"))

    assert numbers(given_) == {"x": "a2 b0", "y": "a0 a1 b1"}


def test_everything_is_near_to_a_member_without_a_rack():
    """A member without a rack gets the first partitions, as without racks."""
    given_ = range_assignor(in_racks(x="", y="r2"), {"a": 4}, replicas(a="r2 r1 r2 r1"))

    assert numbers(given_) == {"x": "a0 a1", "y": "a2 a3"}


@pytest.mark.parametrize(
    "racks",
    [
        pytest.param({}, id="nothing is known"),
        pytest.param(replicas(a="r1,r2 r1,r2 r1,r2 r1,r2"), id="all are everywhere"),
        pytest.param(replicas(a="r1 r1 r1 r1"), id="all are in one"),
        pytest.param(replicas(a="r3 r4 r3 r4"), id="no member is there"),
    ],
)
def test_range_ignores_racks_that_make_no_difference(racks):
    """Racks that make no difference do not change the assignment."""
    assert numbers(range_assignor(in_racks(x="r2", y="r1"), {"a": 4}, racks)) == {"x": "a0 a1", "y": "a2 a3"}


def test_roundrobin_ignores_racks():
    """Round-robin ignores racks, as in Java."""
    given_ = roundrobin_assignor(in_racks(x="r1", y="r2"), {"a": 4}, replicas(a="r2 r1 r2 r1"))

    assert numbers(given_) == {"x": "a0 a2", "y": "a1 a3"}


@st.composite
def groups_in_racks(draw):
    """Draw groups with racks of members and replicas."""
    group = [replace(one, rack=draw(st.sampled_from([None, *RACKS]))) for one in draw(MEMBERS)]
    counts = draw(COUNTS)
    where = st.frozensets(st.sampled_from(RACKS))
    return (
        group,
        counts,
        {TopicPartition(topic, n): draw(where) for topic, count in counts.items() for n in range(count)},
    )


@settings(max_examples=30)
@given(groups_in_racks())
def test_range_with_racks_is_as_even_as_without(case):
    """Loads are as even as without racks, and each partition is assigned once."""
    group, counts, racks = case

    near, plain = range_assignor(group, counts, racks), range_assignor(group, counts)

    for topic in counts:
        shares = [
            sorted(sum(one.topic == topic for one in ones) for ones in assigned.values()) for assigned in (near, plain)
        ]
        assert shares[0] == shares[1]
    assert sorted(one for ones in near.values() for one in ones) == sorted(
        one for ones in plain.values() for one in ones
    )


@settings(max_examples=30)
@given(groups_in_racks(), st.integers(1, 9))
def test_range_with_racks_cuts_equal_topics_alike(case, count):
    """With racks, partitions of the same number in equal topics have the same owner."""
    group, _, _ = case
    group = [replace(one, topics=frozenset(TOPICS)) for one in group]
    racks = case[2]

    assigned = range_assignor(group, dict.fromkeys(TOPICS, count), racks)

    for ones in assigned.values():
        by_topic = [[one.partition for one in ones if one.topic == topic] for topic in TOPICS]
        assert all(found == by_topic[0] for found in by_topic)


@settings(max_examples=30)
@given(groups_in_racks(), st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter_with_racks(case, random):
    """With racks, too, any leader computes the same assignment."""
    group, counts, racks = case

    shuffled = random.sample(group, len(group))
    others = dict(random.sample(sorted(counts.items()), len(counts)))

    assert range_assignor(shuffled, others, racks) == range_assignor(group, counts, racks)
