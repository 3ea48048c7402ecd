"""Sticky assignors: even loads with few moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.consumer.group.assignors import BUILT_IN, checked_assignment
from tailrace.consumer.group.range_assignor import NO_RACKS, SubscribedMember, do_racks_matter
from tailrace.consumer.group.sticky_assignor import claims_of, sticky_assignor
from tailrace.records import TopicPartition
from tests.support.simulation.cpu_time import cpu_time

TOPICS = "abc"
RACKS = ("r1", "r2")


def cooperative_sticky_assignor(members, counts, racks=NO_RACKS):
    return checked_assignment(BUILT_IN["cooperative-sticky"], members, counts, racks)


both = pytest.mark.parametrize("assign", [sticky_assignor, cooperative_sticky_assignor], ids=["sticky", "cooperative"])
modest = settings(max_examples=20)


def partitions(words: str) -> list[TopicPartition]:
    """Parse ``a0 a1 b0``."""
    return [TopicPartition(word[0], int(word[1:])) for word in words.split()]


def member(name: str, topics: str, owned: str = "", generation: int = 1, rack: str | None = None) -> SubscribedMember:
    return SubscribedMember(name, frozenset(topics), None, frozenset(partitions(owned)), generation, rack)


def words(assigned) -> dict[str, str]:
    return {name: " ".join(f"{one.topic}{one.partition}" for one in ones) for name, ones in assigned.items()}


def next_round(group, assigned) -> list[SubscribedMember]:
    """Return the group after all members have taken over their partitions."""
    return [replace(one, owned=frozenset(assigned.get(one.member_id, ())), generation=9) for one in group]


def wanted_of(group, counts) -> set[TopicPartition]:
    topics = {topic for one in group for topic in one.topics} & counts.keys()
    return {TopicPartition(topic, number) for topic in topics for number in range(counts[topic])}


def taken(assigned) -> list[TopicPartition]:
    return sorted(one for ones in assigned.values() for one in ones)


def loads(assigned) -> list[int]:
    return sorted(map(len, assigned.values()))


def moved(group, counts, assigned) -> int:
    """Return how many subscribed partitions left an owner whose claim was valid."""
    claims = {one: owner for one, owner in claims_of(group).items() if one in wanted_of(group, counts)}
    return sum(one not in assigned[owner] for one, owner in claims.items())


def could_be_more_even(group, assigned) -> list[tuple[str, str]]:
    """Return members that could give a partition, directly or through others, to a member with two fewer."""
    found = []
    for start in group:
        reached, ahead = {start.member_id}, [start.member_id]
        while ahead:
            topics = {one.topic for one in assigned[ahead.pop()]}
            more = {one.member_id for one in group if one.topics & topics} - reached
            reached |= more
            ahead += more
        found += [(start.member_id, end) for end in reached if len(assigned[end]) <= len(assigned[start.member_id]) - 2]
    return found


def is_far(partition, taker, racks) -> bool:
    return taker.rack is not None and taker.rack not in racks[partition]


@st.composite
def groups(draw, *, is_equal=False):
    """Draw groups with claims, some of them wrong, and partition counts."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6), min_size=1))
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    everything = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count + 1)]
    owners = draw(st.lists(st.sampled_from([None, *names]), min_size=len(everything), max_size=len(everything)))
    contested = draw(st.lists(st.tuples(st.sampled_from(everything), st.sampled_from(names)), max_size=3))
    claims = {*zip(everything, owners, strict=True), *contested}
    return [
        SubscribedMember(
            name,
            frozenset(TOPICS) if is_equal else draw(st.frozensets(st.sampled_from(TOPICS))),
            draw(st.sampled_from([None, f"i-{name}"])),
            frozenset(partition for partition, owner in claims if owner == name),
            draw(st.sampled_from([7, 7, 7, 5, -1])),
        )
        for name in names
    ], counts


@st.composite
def groups_in_racks(draw):
    """Draw groups with racks of members and replicas."""
    group, counts = draw(groups())
    group = [replace(one, rack=draw(st.sampled_from([None, *RACKS]))) for one in group]
    replicas = st.frozensets(st.sampled_from(RACKS))
    racks = {TopicPartition(topic, n): draw(replicas) for topic, count in counts.items() for n in range(count)}
    return group, counts, racks


# ---- examples --------------------------------------------------------------------------------------------------


@both
def test_new_group_is_assigned_in_turn(assign):
    """In a new group, partitions are assigned in turn, so that no member gets a whole topic."""
    assigned = assign([member("y", "ab"), member("x", "ab")], {"a": 3, "b": 3})

    assert words(assigned) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


@both
def test_members_keep_their_partitions_when_one_leaves(assign):
    """When a member leaves, only its partitions move."""
    assigned = assign([member("x", "a", "a0 a3"), member("y", "a", "a1 a4")], {"a": 6})

    assert words(assigned) == {"x": "a0 a2 a3", "y": "a1 a4 a5"}


def test_joining_member_gets_its_share():
    """The other members release only partitions above their share."""
    assigned = sticky_assignor([member("x", "a", "a0 a1 a2"), member("y", "a", "a3 a4 a5"), member("z", "a")], {"a": 6})

    assert words(assigned) == {"x": "a0 a1", "y": "a3 a4", "z": "a2 a5"}


def test_cooperative_releases_before_it_assigns():
    """A moved partition is unassigned in the first round and assigned in the second."""
    group = [member("x", "a", "a0 a1 a2"), member("y", "a", "a3 a4 a5"), member("z", "a")]

    first = cooperative_sticky_assignor(group, {"a": 6})
    second = cooperative_sticky_assignor(next_round(group, first), {"a": 6})

    assert words(first) == {"x": "a0 a1", "y": "a3 a4", "z": ""}
    assert words(second) == {"x": "a0 a1", "y": "a3 a4", "z": "a2 a5"}


def test_loads_are_evened_through_other_members():
    """Loads are evened through a third member if one cannot give a partition to the least loaded member directly."""
    assigned = sticky_assignor([member("x", "a", "a0 a1"), member("y", "ab", "b0"), member("z", "b")], {"a": 2, "b": 1})

    assert words(assigned) == {"x": "a0", "y": "a1", "z": "b0"}


@both
def test_the_claim_of_the_later_generation_is_valid(assign):
    """If two members claim a partition, the claim of the later generation is valid."""
    assigned = assign([member("x", "a", "a0 a1", generation=4), member("y", "a", "a0", generation=5)], {"a": 2})

    assert words(assigned) == {"x": "a1", "y": "a0"}


def test_equal_claims_are_both_released():
    """If two members claim a partition in the same generation, the cooperative assignor takes it from both first."""
    group = [member("x", "a", "a0 a1"), member("y", "a", "a0")]

    first = cooperative_sticky_assignor(group, {"a": 2})

    assert words(first) == {"x": "a1", "y": ""}
    assert words(cooperative_sticky_assignor(next_round(group, first), {"a": 2})) == {"x": "a1", "y": "a0"}


def test_older_claim_does_not_win_over_two_equal_ones():
    """Two claims of the latest generation cancel each other, and an older claim is not valid either."""
    group = [member("x", "a", "a0"), member("y", "a", "a0"), member("z", "a", "a0", generation=0)]

    assert claims_of(group) == claims_of(group[::-1]) == {}


def test_unsubscribed_partition_is_released_first():
    """The new owner of a partition that its owner unsubscribed from waits until it is released."""
    group = [member("x", "b", "a0"), member("y", "a")]

    assert words(cooperative_sticky_assignor(group, {"a": 1})) == {"x": "", "y": ""}
    assert words(sticky_assignor(group, {"a": 1})) == {"x": "", "y": "a0"}


@both
def test_missing_partitions_are_not_assigned(assign):
    """Deleted topics, removed partitions and topics without a subscriber are not assigned."""
    assert words(assign([member("x", "ab", "a0 a7 b0")], {"a": 1, "c": 4})) == {"x": "a0"}
    assert words(assign([member("x", "")], {"a": 1})) == {"x": ""}
    assert assign([], {"a": 1}) == {}


# ---- racks -----------------------------------------------------------------------------------------------------

SIDES = {one: frozenset({rack}) for rack, ones in (("r1", "a0 a1"), ("r2", "a2 a3")) for one in partitions(ones)}


@both
def test_new_partitions_go_to_near_members(assign):
    """New partitions go to near members where loads allow; a member without a rack takes the rest."""
    pair = [member("x", "a", rack="r2"), member("y", "a", rack="r1")]

    assert words(assign(pair, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}
    assert words(assign([pair[0], member("y", "a")], {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}


@both
def test_even_loads_come_before_racks(assign):
    """Members in one rack share the partitions of other racks, so that loads are even."""
    assigned = assign([member("x", "a", rack="r1"), member("y", "a", rack="r1")], {"a": 4}, SIDES)

    assert words(assigned) == {"x": "a0 a2", "y": "a1 a3"}


def test_joining_member_gets_near_partitions():
    """A joining member gets partitions of its rack that are far from their owners first."""
    group = [member("x", "a", "a0 a1 a2 a3", rack="r2"), member("y", "a", rack="r1")]

    assert words(sticky_assignor(group, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}


def test_owned_partitions_move_for_racks_in_a_calm_round():
    """Members exchange far partitions only in a round in which no others move or have no owner."""
    swapped = [member("x", "a", "a0 a1", rack="r2"), member("y", "a", "a2 a3", rack="r1")]
    one_waits = [member("x", "a", "a0", rack="r2"), member("y", "a", "a2 a3", rack="r1")]

    assert words(sticky_assignor(swapped, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}
    assert words(sticky_assignor(one_waits, {"a": 4}, SIDES)) == {"x": "a0 a1", "y": "a2 a3"}


def test_loads_that_differ_by_one_may_swap_for_racks():
    """For racks, the less loaded of two members may become the more loaded one."""
    group = [member("x", "a", "a0 a2", rack="r2"), member("y", "a", "a1", rack="r1")]

    assert words(sticky_assignor(group, {"a": 3}, SIDES)) == {"x": "a2", "y": "a0 a1"}


@pytest.mark.parametrize(
    ("counts", "wants_and_has"),
    [
        pytest.param(
            {"a": 1, "b": 2}, {"x": ("a", "a0", "r2"), "y": ("ab", "b0", "r1"), "z": ("b", "b1", "r2")}, id="to give"
        ),
        pytest.param(
            {"a": 2, "b": 1}, {"x": ("ab", "a0", "r2"), "y": ("a", "a1", "r1"), "z": ("b", "b0", "r1")}, id="to take"
        ),
    ],
)
def test_exchange_needs_both_subscriptions(counts, wants_and_has):
    """No exchange gives a member a topic that it has not subscribed to."""
    group = [member(name, topics, owned, rack=rack) for name, (topics, owned, rack) in wants_and_has.items()]
    racks = {**SIDES, **dict.fromkeys(partitions("b0 b1"), frozenset({"r2"}))}

    assigned = sticky_assignor(group, counts, racks)

    assert words(assigned) == {name: owned for name, (_, owned, _) in wants_and_has.items()}


@pytest.mark.parametrize(
    "racks",
    [
        pytest.param({}, id="nothing is known"),
        pytest.param(dict.fromkeys(SIDES, frozenset(RACKS)), id="all are everywhere"),
        pytest.param(dict.fromkeys(SIDES, frozenset({"r1"})), id="all are in one"),
        pytest.param(dict.fromkeys(SIDES, frozenset({"elsewhere"})), id="none is near to anybody"),
    ],
)
def test_racks_that_make_no_difference_are_ignored(racks):
    """Racks that make no difference do not change the assignment."""
    group = [member("x", "a", "a0 a1 a2", rack="r2"), member("y", "a", rack="r1")]

    assert sticky_assignor(group, {"a": 4}, racks) == sticky_assignor(group, {"a": 4})


@modest
@given(groups_in_racks())
def test_loads_with_racks_are_those_without(case):
    """Racks never make loads less even."""
    group, counts, racks = case

    assigned = sticky_assignor(group, counts, racks)

    assert loads(assigned) == loads(sticky_assignor(group, counts))
    assert taken(assigned) == sorted(wanted_of(group, counts))


@modest
@given(groups_in_racks())
def test_no_exchange_improves_a_new_group(case):
    """In a new group, no exchange or move between two members makes fewer partitions far at the same loads."""
    group, counts, racks = case
    group = [replace(one, owned=frozenset()) for one in group]
    assume(do_racks_matter([one.rack for one in group], [racks[one] for one in wanted_of(group, counts)]))

    assigned = sticky_assignor(group, counts, racks)

    for giver, taker in permutations(group, 2):
        far = [one for one in assigned[giver.member_id] if is_far(one, giver, racks)]
        if any(one.topic in taker.topics and not is_far(one, taker, racks) for one in far):
            back = [one for one in assigned[taker.member_id] if one.topic in giver.topics]
            assert len(assigned[taker.member_id]) >= len(assigned[giver.member_id])
            assert all(is_far(one, giver, racks) and not is_far(one, taker, racks) for one in back)


# ---- properties ------------------------------------------------------------------------------------------------


@modest
@given(groups_in_racks())
def test_each_partition_has_one_owner_and_loads_are_even(case):
    """For any claims, each partition has one subscribed owner, and loads are as even as subscriptions permit."""
    group, counts, racks = case

    assigned = sticky_assignor(group, counts, racks)

    assert taken(assigned) == sorted(wanted_of(group, counts))
    assert assigned.keys() == {one.member_id for one in group}
    assert all(partition.topic in one.topics for one in group for partition in assigned[one.member_id])
    assert could_be_more_even(group, assigned) == []


@both
@modest
@given(case=groups_in_racks(), random=st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(assign, case, random):
    """Any order of members and topics yields the same assignment, so any leader computes the same."""
    group, counts, racks = case

    def shuffled(mapping):
        return dict(random.sample(sorted(mapping.items()), len(mapping)))

    assert assign(random.sample(group, len(group)), shuffled(counts), shuffled(racks)) == assign(group, counts, racks)


@modest
@given(groups(is_equal=True))
def test_moves_are_as_few_as_even_loads_allow(case):
    """With equal subscriptions, each member keeps as many of its partitions as even loads allow."""
    group, counts = case

    assigned = sticky_assignor(group, counts)

    everything = wanted_of(group, counts)
    owned = Counter(owner for one, owner in claims_of(group).items() if one in everything)
    share, left_over = divmod(len(everything), len(group))
    too_much = sum(max(0, count - share) for count in owned.values())
    assert moved(group, counts, assigned) == too_much - min(left_over, sum(count > share for count in owned.values()))


@modest
@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_joining_or_leaving_member_moves_only_its_share(size, count, data):
    """When a member joins or leaves a settled group, only its share moves."""
    group = [member(f"m{number}", "a") for number in range(size)]
    settled = next_round(group, sticky_assignor(group, {"a": count}))
    stayed = [one for one in settled if one.member_id != f"m{data.draw(st.integers(0, size))}"]
    joined = [*settled, member("new", "a")]

    assigned = sticky_assignor(joined, {"a": count})

    assert moved(joined, {"a": count}, assigned) == len(assigned["new"]) == count // (size + 1)
    assert moved(stayed, {"a": count}, sticky_assignor(stayed, {"a": count})) == 0


@modest
@given(groups())
def test_settled_group_does_not_change(case):
    """Another round of a settled group moves nothing."""
    group, counts = case
    assigned = sticky_assignor(group, counts)

    assert sticky_assignor(next_round(group, assigned), counts) == assigned


@modest
@given(groups_in_racks())
def test_cooperative_assigns_only_released_partitions(case):
    """The cooperative assignor assigns a partition to its valid owner, or to another member once it is released."""
    group, counts, racks = case

    assigned = cooperative_sticky_assignor(group, counts, racks)

    claims = claims_of(group)
    claimed = {partition for one in group for partition in one.owned}
    for taker in group:
        others = {partition for one in group if one is not taker for partition in one.owned}
        assert all(claims.get(one) == taker.member_id or one not in others for one in assigned[taker.member_id])
    assert wanted_of(group, counts) - {*taken(assigned)} <= claimed


@modest
@given(groups_in_racks())
def test_cooperative_needs_at_most_two_rounds(case):
    """The round after a release assigns everything evenly and moves nothing."""
    group, counts, racks = case
    first = cooperative_sticky_assignor(group, counts, racks)
    if {*taken(first)} == wanted_of(group, counts):
        # Nothing was released, so no round follows; without racks, it would change nothing.
        assert cooperative_sticky_assignor(next_round(group, first), counts) == first
        return

    second = cooperative_sticky_assignor(next_round(group, first), counts, racks)

    assert all({*first[name]} <= {*second[name]} for name in first)
    assert taken(second) == sorted(wanted_of(group, counts))
    assert could_be_more_even(group, second) == []


# ---- large groups ----------------------------------------------------------------------------------------------

MANY_TOPICS = [f"t{number:02}" for number in range(100)]
MANY = dict.fromkeys(MANY_TOPICS, 100)


def many_members(*, is_equal: bool) -> list[SubscribedMember]:
    random = Random(848)
    some = {True: lambda: MANY_TOPICS, False: lambda: random.sample(MANY_TOPICS, random.randint(1, 100))}[is_equal]
    return [SubscribedMember(f"m{number:03}", frozenset(some()), rack=random.choice(RACKS)) for number in range(1000)]


@pytest.mark.parametrize(
    ("is_equal", "has_racks", "bound_s"), [(True, False, 2.0), (False, True, 6.0)], ids=["equal", "mixed, in racks"]
)
def test_large_assignment_is_fast(is_equal, bound_s, has_racks):
    """An assignment of ten thousand partitions to a thousand members takes a short time."""
    group = many_members(is_equal=is_equal)
    everything = frozenset(TopicPartition(topic, number) for topic in MANY_TOPICS for number in range(100))
    racks = {one: frozenset({RACKS[one.partition % 2]}) for one in everything} if has_racks else {}

    with cpu_time() as own_s:

        def deal(members):
            start = own_s()
            assigned = sticky_assignor(members, MANY, racks)
            assert own_s() - start < bound_s
            return assigned

        assigned = deal(group)
        settled = next_round(group, assigned)
        deal(settled[1:])
        grown = deal([*settled, SubscribedMember("new", frozenset(MANY_TOPICS))])
        deal([replace(group[0], owned=everything), *group[1:]])

    assert loads(assigned) == [10] * 1000
    assert loads(grown) == [9] * 10 + [10] * 991
