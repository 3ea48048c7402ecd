"""How partitions are dealt out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.assignors import ASSIGNORS, GroupMember, range_assignor, roundrobin_assignor
from penstock.records import TopicPartition

TOPICS = "abcd"

MEMBERS = st.lists(st.tuples(st.frozensets(st.sampled_from(TOPICS)), st.booleans()), min_size=1, max_size=6).map(
    lambda found: [
        GroupMember(f"m{n}", topics, instance_id=f"i{9 - n}" if is_static else None)
        for n, (topics, is_static) in enumerate(found)
    ]
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))

every = pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)


def members(*names: str, topics: str = "t") -> list[GroupMember]:
    return [GroupMember(name, frozenset(topics)) for name in names]


def numbers(given_: dict[str, list[TopicPartition]]) -> dict[str, str]:
    """An assignment as words: ``a0 a1 b0``."""
    return {member: " ".join(f"{one.topic}{one.partition}" for one in ones) for member, ones in given_.items()}


# ---- examples, which are Java's --------------------------------------------------------------------------------


def test_range_gives_the_first_members_one_more():
    """Seven partitions for three are three, two and two, in runs."""
    given_ = range_assignor(members("z", "x", "y"), {"t": 7})

    assert numbers(given_) == {"x": "t0 t1 t2", "y": "t3 t4", "z": "t5 t6"}


def test_range_begins_each_topic_anew():
    """Two topics of three partitions and two members: the first has two of each, so four and two in all."""
    given_ = range_assignor(members("x", "y", topics="ab"), {"a": 3, "b": 3})

    assert numbers(given_) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_roundrobin_goes_on_from_topic_to_topic():
    """The same topics dealt in turn: three and three."""
    given_ = roundrobin_assignor(members("x", "y", topics="ab"), {"a": 3, "b": 3})

    assert numbers(given_) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


def test_roundrobin_passes_over_who_does_not_want_the_topic():
    """Java's own example of members with different subscriptions."""
    group = [
        GroupMember("c0", frozenset({"t0"})),
        GroupMember("c1", frozenset({"t0", "t1"})),
        GroupMember("c2", frozenset({"t0", "t1", "t2"})),
    ]

    given_ = roundrobin_assignor(group, {"t0": 1, "t1": 2, "t2": 3})

    assert numbers(given_) == {"c0": "t00", "c1": "t10", "c2": "t11 t20 t21 t22"}


@every
def test_static_members_stand_first_by_their_lasting_names(assign):
    """A static member keeps its place in line when it comes back under another member id."""
    group = [
        GroupMember("a", frozenset("t")),
        GroupMember("z", frozenset("t"), "i1"),
        GroupMember("y", frozenset("t"), "i2"),
    ]

    assert numbers(assign(group, {"t": 3})) == {"z": "t0", "y": "t1", "a": "t2"}


@every
def test_more_members_than_partitions(assign):
    """Who gets nothing is told so."""
    assert numbers(assign(members("x", "y", "z"), {"t": 1})) == {"x": "t0", "y": "", "z": ""}


@every
def test_topics_that_nobody_wants_or_that_do_not_exist(assign):
    """What is not subscribed is not dealt, and what does not exist cannot be."""
    assert numbers(assign(members("x", topics="tu"), {"t": 1, "other": 5})) == {"x": "t0"}
    assert numbers(assign(members("x"), {})) == {"x": ""}


# ---- what holds for all of them --------------------------------------------------------------------------------


@every
def test_each_partition_has_one_owner_who_wants_it(assign):
    """Every partition of a topic that somebody subscribes goes to exactly one member, and that one subscribes it."""

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
def test_the_order_of_the_input_does_not_matter(assign):
    """Whoever leads deals the same, in whatever order it heard of members and topics."""

    @given(MEMBERS, COUNTS, st.randoms(use_true_random=False))
    def check(group, counts, random):
        shuffled = random.sample(group, len(group))
        other = dict(random.sample(sorted(counts.items()), len(counts)))

        assert assign(shuffled, other) == assign(group, counts)

    check()


@given(MEMBERS, COUNTS)
def test_range_is_even_within_a_topic(group, counts):
    """Of each topic, no subscriber has two partitions more than another, and each one's are a run."""
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
    """Where all subscribe the same, no member has two partitions more than another."""
    group = members(*(f"m{n}" for n in range(size)), topics=TOPICS)

    shares = [len(ones) for ones in roundrobin_assignor(group, counts).values()]

    assert max(shares) - min(shares) <= 1


def test_the_names_are_those_that_members_tell_each_other():
    """A group of several clients agrees on an assignor by its name."""
    assert ASSIGNORS["range"] is range_assignor
    assert ASSIGNORS["roundrobin"] is roundrobin_assignor
