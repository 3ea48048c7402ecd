"""How partitions are dealt so that loads are even and little moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.core.group.assignors.racks import do_racks_matter
from tailrace.core.group.assignors.range_and_roundrobin import SubscribedMember
from tailrace.core.group.assignors.sticky import claims_of, cooperative_sticky_assignor, sticky_assignor
from tailrace.records import TopicPartition
from tests.support.simulation.cpu_time import cpu_time

TOPICS = "abc"
RACKS = ("r1", "r2")

both = pytest.mark.parametrize("assign", [sticky_assignor, cooperative_sticky_assignor], ids=["sticky", "cooperative"])
modest = settings(max_examples=20)


def partitions(words: str) -> list[TopicPartition]:
    """``a0 a1 b0``, read."""
    return [TopicPartition(word[0], int(word[1:])) for word in words.split()]


def member(name: str, topics: str, owned: str = "", generation: int = 1, rack: str | None = None) -> SubscribedMember:
    return SubscribedMember(name, frozenset(topics), None, frozenset(partitions(owned)), generation, rack)


def words(dealt) -> dict[str, str]:
    return {name: " ".join(f"{one.topic}{one.partition}" for one in ones) for name, ones in dealt.items()}


def next_round(group, dealt) -> list[SubscribedMember]:
    """The group when everybody has what was dealt."""
    return [replace(one, owned=frozenset(dealt.get(one.member_id, ())), generation=9) for one in group]


def wanted_of(group, counts) -> set[TopicPartition]:
    topics = {topic for one in group for topic in one.topics} & counts.keys()
    return {TopicPartition(topic, number) for topic in topics for number in range(counts[topic])}


def taken(dealt) -> list[TopicPartition]:
    return sorted(one for ones in dealt.values() for one in ones)


def loads(dealt) -> list[int]:
    return sorted(map(len, dealt.values()))


def moved(group, counts, dealt) -> int:
    """How many partitions that were rightly owned and are still wanted are not with their owner."""
    claims = {one: owner for one, owner in claims_of(group).items() if one in wanted_of(group, counts)}
    return sum(one not in dealt[owner] for one, owner in claims.items())


def could_be_more_even(group, dealt) -> list[tuple[str, str]]:
    """Who could still give whom a partition, directly or through others, though the one has two more."""
    found = []
    for start in group:
        reached, ahead = {start.member_id}, [start.member_id]
        while ahead:
            topics = {one.topic for one in dealt[ahead.pop()]}
            more = {one.member_id for one in group if one.topics & topics} - reached
            reached |= more
            ahead += more
        found += [(start.member_id, end) for end in reached if len(dealt[end]) <= len(dealt[start.member_id]) - 2]
    return found


def is_far(partition, taker, racks) -> bool:
    return taker.rack is not None and taker.rack not in racks[partition]


@st.composite
def groups(draw, *, is_equal=False):
    """Members with what they say they own, some of it wrongly, and how many partitions there are."""
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
    """The same, with racks of members and of replicas."""
    group, counts = draw(groups())
    group = [replace(one, rack=draw(st.sampled_from([None, *RACKS]))) for one in group]
    replicas = st.frozensets(st.sampled_from(RACKS))
    racks = {TopicPartition(topic, n): draw(replicas) for topic, count in counts.items() for n in range(count)}
    return group, counts, racks


# ---- examples --------------------------------------------------------------------------------------------------


@both
def test_a_new_group_is_dealt_in_turn(assign):
    """Without a past, partitions go round, so that no member has a topic to itself."""
    dealt = assign([member("y", "ab"), member("x", "ab")], {"a": 3, "b": 3})

    assert words(dealt) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


@both
def test_who_stays_keeps_what_it_has(assign):
    """A member has left: its partitions are shared by the others, and nothing else moves."""
    dealt = assign([member("x", "a", "a0 a3"), member("y", "a", "a1 a4")], {"a": 6})

    assert words(dealt) == {"x": "a0 a2 a3", "y": "a1 a4 a5"}


def test_who_comes_gets_its_share_and_no_more():
    """A member has joined: each of the others gives up what it has too much."""
    dealt = sticky_assignor([member("x", "a", "a0 a1 a2"), member("y", "a", "a3 a4 a5"), member("z", "a")], {"a": 6})

    assert words(dealt) == {"x": "a0 a1", "y": "a3 a4", "z": "a2 a5"}


def test_cooperative_lets_go_first():
    """The same in two rounds: what moves is nobody's in the first, and the new member's in the second."""
    group = [member("x", "a", "a0 a1 a2"), member("y", "a", "a3 a4 a5"), member("z", "a")]

    first = cooperative_sticky_assignor(group, {"a": 6})
    second = cooperative_sticky_assignor(next_round(group, first), {"a": 6})

    assert words(first) == {"x": "a0 a1", "y": "a3 a4", "z": ""}
    assert words(second) == {"x": "a0 a1", "y": "a3 a4", "z": "a2 a5"}


def test_loads_are_evened_through_others():
    """One who cannot give to the poorest gives to one who can."""
    dealt = sticky_assignor([member("x", "a", "a0 a1"), member("y", "ab", "b0"), member("z", "b")], {"a": 2, "b": 1})

    assert words(dealt) == {"x": "a0", "y": "a1", "z": "b0"}


@both
def test_the_later_generation_is_right(assign):
    """One who was away claims what another has been given since: that one keeps it, and at once."""
    dealt = assign([member("x", "a", "a0 a1", generation=4), member("y", "a", "a0", generation=5)], {"a": 2})

    assert words(dealt) == {"x": "a1", "y": "a0"}


def test_two_of_one_generation_both_let_go():
    """Nobody knows who is right, so cooperative takes it from both before it is given to one."""
    group = [member("x", "a", "a0 a1"), member("y", "a", "a0")]

    first = cooperative_sticky_assignor(group, {"a": 2})

    assert words(first) == {"x": "a1", "y": ""}
    assert words(cooperative_sticky_assignor(next_round(group, first), {"a": 2})) == {"x": "a1", "y": "a0"}


def test_a_third_claim_of_an_older_generation_changes_nothing():
    """Two of the latest generation cancel each other out; one of an older one does not win by that."""
    group = [member("x", "a", "a0"), member("y", "a", "a0"), member("z", "a", "a0", generation=0)]

    assert claims_of(group) == claims_of(group[::-1]) == {}


def test_who_no_longer_wants_a_topic_lets_go_of_it_first():
    """The subscription changed and the partition is still held: its new owner waits for that."""
    group = [member("x", "b", "a0"), member("y", "a")]

    assert words(cooperative_sticky_assignor(group, {"a": 1})) == {"x": "", "y": ""}
    assert words(sticky_assignor(group, {"a": 1})) == {"x": "", "y": "a0"}


@both
def test_what_is_gone_is_not_dealt(assign):
    """A topic that was deleted, a partition that does not exist, a topic nobody wants: none is given out."""
    assert words(assign([member("x", "ab", "a0 a7 b0")], {"a": 1, "c": 4})) == {"x": "a0"}
    assert words(assign([member("x", "")], {"a": 1})) == {"x": ""}
    assert assign([], {"a": 1}) == {}


# ---- racks -----------------------------------------------------------------------------------------------------

SIDES = {one: frozenset({rack}) for rack, ones in (("r1", "a0 a1"), ("r2", "a2 a3")) for one in partitions(ones)}


@both
def test_what_is_new_goes_where_a_replica_is(assign):
    """Members read from their own rack where loads allow it; one that does not say where it is takes what is left."""
    pair = [member("x", "a", rack="r2"), member("y", "a", rack="r1")]

    assert words(assign(pair, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}
    assert words(assign([pair[0], member("y", "a")], {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}


@both
def test_evenness_comes_before_nearness(assign):
    """Members that are all in one rack share what is elsewhere, too."""
    dealt = assign([member("x", "a", rack="r1"), member("y", "a", rack="r1")], {"a": 4}, SIDES)

    assert words(dealt) == {"x": "a0 a2", "y": "a1 a3"}


def test_a_joining_member_gets_what_is_near_to_it():
    """Of what has to move, that moves which is far where it is and near where it goes."""
    group = [member("x", "a", "a0 a1 a2 a3", rack="r2"), member("y", "a", rack="r1")]

    assert words(sticky_assignor(group, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}


def test_what_is_owned_moves_for_nearness_in_a_round_of_its_own():
    """Replicas were moved: members exchange what is far, unless something else moves or waits for an owner."""
    swapped = [member("x", "a", "a0 a1", rack="r2"), member("y", "a", "a2 a3", rack="r1")]
    one_waits = [member("x", "a", "a0", rack="r2"), member("y", "a", "a2 a3", rack="r1")]

    assert words(sticky_assignor(swapped, {"a": 4}, SIDES)) == {"x": "a2 a3", "y": "a0 a1"}
    assert words(sticky_assignor(one_waits, {"a": 4}, SIDES)) == {"x": "a0 a1", "y": "a2 a3"}


def test_one_that_has_less_takes_what_is_near_to_it():
    """Where loads differ by one, they may do so the other way round."""
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
def test_nobody_is_given_in_exchange_what_it_does_not_want(counts, wants_and_has):
    """An exchange by which something would come near needs two that want each other's."""
    group = [member(name, topics, owned, rack=rack) for name, (topics, owned, rack) in wants_and_has.items()]
    racks = {**SIDES, **dict.fromkeys(partitions("b0 b1"), frozenset({"r2"}))}

    dealt = sticky_assignor(group, counts, racks)

    assert words(dealt) == {name: owned for name, (_, owned, _) in wants_and_has.items()}


@pytest.mark.parametrize(
    "racks",
    [
        pytest.param({}, id="nothing is known"),
        pytest.param(dict.fromkeys(SIDES, frozenset(RACKS)), id="all are everywhere"),
        pytest.param(dict.fromkeys(SIDES, frozenset({"r1"})), id="all are in one"),
        pytest.param(dict.fromkeys(SIDES, frozenset({"elsewhere"})), id="none is near to anybody"),
    ],
)
def test_racks_that_make_no_difference_change_nothing(racks):
    """Dealing is as without."""
    group = [member("x", "a", "a0 a1 a2", rack="r2"), member("y", "a", rack="r1")]

    assert sticky_assignor(group, {"a": 4}, racks) == sticky_assignor(group, {"a": 4})


@modest
@given(groups_in_racks())
def test_nearness_costs_no_evenness(case):
    """With racks, loads are what they are without."""
    group, counts, racks = case

    dealt = sticky_assignor(group, counts, racks)

    assert loads(dealt) == loads(sticky_assignor(group, counts))
    assert taken(dealt) == sorted(wanted_of(group, counts))


@modest
@given(groups_in_racks())
def test_in_a_new_group_no_exchange_would_bring_anything_near(case):
    """No two members could exchange partitions, and none could pass one on, so that less is far and loads stay."""
    group, counts, racks = case
    group = [replace(one, owned=frozenset()) for one in group]
    assume(do_racks_matter([one.rack for one in group], [racks[one] for one in wanted_of(group, counts)]))

    dealt = sticky_assignor(group, counts, racks)

    for giver, taker in permutations(group, 2):
        far = [one for one in dealt[giver.member_id] if is_far(one, giver, racks)]
        if any(one.topic in taker.topics and not is_far(one, taker, racks) for one in far):
            back = [one for one in dealt[taker.member_id] if one.topic in giver.topics]
            assert len(dealt[taker.member_id]) >= len(dealt[giver.member_id])
            assert all(is_far(one, giver, racks) and not is_far(one, taker, racks) for one in back)


# ---- what holds for every group --------------------------------------------------------------------------------


@modest
@given(groups_in_racks())
def test_each_partition_is_given_once_and_loads_could_not_be_more_even(case):
    """Whatever members claim: one owner who wants it, and no member could take from one with two more, in any way."""
    group, counts, racks = case

    dealt = sticky_assignor(group, counts, racks)

    assert taken(dealt) == sorted(wanted_of(group, counts))
    assert dealt.keys() == {one.member_id for one in group}
    assert all(partition.topic in one.topics for one in group for partition in dealt[one.member_id])
    assert could_be_more_even(group, dealt) == []


@both
@modest
@given(case=groups_in_racks(), random=st.randoms(use_true_random=False))
def test_whoever_leads_deals_the_same(assign, case, random):
    """In whatever order the leader heard of members, topics and racks."""
    group, counts, racks = case

    def shuffled(mapping):
        return dict(random.sample(sorted(mapping.items()), len(mapping)))

    assert assign(random.sample(group, len(group)), shuffled(counts), shuffled(racks)) == assign(group, counts, racks)


@modest
@given(groups(is_equal=True))
def test_no_more_moves_than_evenness_demands(case):
    """Where all want the same, each keeps all it may: one more than an even share, for as many as that leaves over."""
    group, counts = case

    dealt = sticky_assignor(group, counts)

    everything = wanted_of(group, counts)
    owned = Counter(owner for one, owner in claims_of(group).items() if one in everything)
    share, left_over = divmod(len(everything), len(group))
    too_much = sum(max(0, count - share) for count in owned.values())
    assert moved(group, counts, dealt) == too_much - min(left_over, sum(count > share for count in owned.values()))


@modest
@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_a_member_that_joins_or_leaves_moves_only_its_share(size, count, data):
    """Of a settled group: one who leaves moves nothing of the others', one who joins only what it then has."""
    group = [member(f"m{number}", "a") for number in range(size)]
    settled = next_round(group, sticky_assignor(group, {"a": count}))
    stayed = [one for one in settled if one.member_id != f"m{data.draw(st.integers(0, size))}"]
    joined = [*settled, member("new", "a")]

    dealt = sticky_assignor(joined, {"a": count})

    assert moved(joined, {"a": count}, dealt) == len(dealt["new"]) == count // (size + 1)
    assert moved(stayed, {"a": count}, sticky_assignor(stayed, {"a": count})) == 0


@modest
@given(groups())
def test_a_settled_group_stays_as_it_is(case):
    """When nothing has changed, nothing moves."""
    group, counts = case
    dealt = sticky_assignor(group, counts)

    assert sticky_assignor(next_round(group, dealt), counts) == dealt


@modest
@given(groups_in_racks())
def test_nobody_gets_what_another_has_yet_to_let_go_of(case):
    """Cooperative gives a partition to its rightful owner, or when no other member claims it; the rest to nobody."""
    group, counts, racks = case

    dealt = cooperative_sticky_assignor(group, counts, racks)

    claims = claims_of(group)
    claimed = {partition for one in group for partition in one.owned}
    for taker in group:
        others = {partition for one in group if one is not taker for partition in one.owned}
        assert all(claims.get(one) == taker.member_id or one not in others for one in dealt[taker.member_id])
    assert wanted_of(group, counts) - {*taken(dealt)} <= claimed


@modest
@given(groups_in_racks())
def test_two_rounds_are_enough(case):
    """After a round in which something was let go, the next gives all, evenly, and takes nothing from anybody."""
    group, counts, racks = case
    first = cooperative_sticky_assignor(group, counts, racks)
    if {*taken(first)} == wanted_of(group, counts):
        # Nothing was let go, so no round follows; without racks, one that did would change nothing.
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
def test_a_thousand_members_share_ten_thousand_partitions_in_no_time(is_equal, bound_s, has_racks):
    """From scratch, when one leaves, when one joins, and when one of them had everything: the leader's loop goes on."""
    group = many_members(is_equal=is_equal)
    everything = frozenset(TopicPartition(topic, number) for topic in MANY_TOPICS for number in range(100))
    racks = {one: frozenset({RACKS[one.partition % 2]}) for one in everything} if has_racks else {}

    with cpu_time() as own_s:

        def deal(members):
            start = own_s()
            dealt = sticky_assignor(members, MANY, racks)
            assert own_s() - start < bound_s
            return dealt

        dealt = deal(group)
        settled = next_round(group, dealt)
        deal(settled[1:])
        grown = deal([*settled, SubscribedMember("new", frozenset(MANY_TOPICS))])
        deal([replace(group[0], owned=everything), *group[1:]])

    assert loads(dealt) == [10] * 1000
    assert loads(grown) == [9] * 10 + [10] * 991
