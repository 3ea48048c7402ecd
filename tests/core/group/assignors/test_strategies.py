"""Which strategies a member may offer, and what becomes of what they return."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.config import ASSIGNMENT_STRATEGIES
from tailrace.core.group.assignors.range_and_roundrobin import SubscribedMember
from tailrace.core.group.assignors.strategies import (
    BUILT_IN,
    Strategy,
    are_cooperative,
    checked_assignment,
    strategies_of,
    strategy_of,
)
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
B0 = TopicPartition("b", 0)
PAIR = [SubscribedMember("x", frozenset("a")), SubscribedMember("y", frozenset("ab"))]
COUNTS = {"a": 2, "b": 1}


def everything_to_the_last(members, partitions):
    """All to one member, which is even less even than it sounds."""
    last = members[-1]
    return {last.member_id: [(topic, n) for topic in sorted(last.topics) for n in range(partitions[topic])]}


class Alphabetical:
    """A user's own, as an object with a name."""

    name = "alphabetical"
    is_cooperative = True

    def __call__(self, members, partitions):
        first = min(members, key=lambda member: member.member_id)
        return {first.member_id: {(topic, n) for topic in first.topics for n in range(partitions.get(topic, 0))}}


def returning(dealt, *, is_cooperative: bool = False) -> Strategy:
    return Strategy("mine", lambda _members, _partitions, _racks: dealt, is_cooperative)


# ---- what may be offered ---------------------------------------------------------------------------------------


def test_the_built_in_ones_go_by_kafkas_names():
    """All clients know them by these; only the cooperative one is cooperative."""
    assert tuple(sorted(BUILT_IN)) == tuple(sorted(ASSIGNMENT_STRATEGIES))
    assert all(strategy.name == name and strategy_of(name) is strategy for name, strategy in BUILT_IN.items())
    assert [name for name, strategy in BUILT_IN.items() if strategy.is_cooperative] == ["cooperative-sticky"]


def test_a_function_goes_by_its_name():
    """A plain function by `__name__`, eagerly; an object by `name`, and as cooperative as it says."""
    assert strategy_of(everything_to_the_last).name == "everything_to_the_last"
    assert not strategy_of(everything_to_the_last).is_cooperative
    assert strategy_of(Alphabetical()).name == "alphabetical"
    assert strategy_of(Alphabetical()).is_cooperative


def test_a_function_is_the_same_strategy_each_time():
    """Two members of one process offer equal strategies."""
    assert strategy_of(everything_to_the_last) == strategy_of(everything_to_the_last)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("cooperative_sticky", "cooperative-sticky"), ("Range", "range"), ("round-robin", "roundrobin")],
)
def test_an_unknown_name_is_refused_with_the_nearest_known(wrong, meant):
    """The error says what was probably meant, and all there is."""
    with pytest.raises(ConfigurationError, match=f"'{wrong}' - did you mean '{meant}'") as caught:
        strategy_of(wrong)

    assert all(name in str(caught.value) for name in BUILT_IN)


def test_a_name_like_no_other_is_refused_with_all_there_are():
    """Without a near one, the error lists them."""
    with pytest.raises(ConfigurationError, match="the built-ins are range, roundrobin, sticky, cooperative-sticky"):
        strategy_of("xyz")


async def by_coroutine(_members, _partitions):
    """Not plain."""


@pytest.mark.parametrize("wrong", [7, None, Alphabetical, by_coroutine], ids=["7", "None", "a class", "a coroutine"])
def test_what_is_no_plain_function_is_refused(wrong):
    """A class is not one of its objects, and a leader does not wait for a coroutine."""
    with pytest.raises(ConfigurationError, match=r"must name one of .* or be a plain function"):
        strategy_of(wrong)


class Nameless:
    """An object with neither name."""

    def __call__(self, members, partitions):
        """Never called."""


def test_what_has_no_name_is_refused():
    """Members agree by name."""
    with pytest.raises(ConfigurationError, match="set its attribute `name`"):
        strategy_of(Nameless())


def test_the_name_of_a_built_in_is_not_for_others():
    """A function called `sticky` would be taken for Kafka's by members that have that one."""

    def sticky(_members, _partitions):
        """Never called."""

    with pytest.raises(ConfigurationError, match="has the name of the built-in 'sticky'"):
        strategy_of(sticky)


def test_several_are_offered_in_their_order():
    """The first is the most preferred."""
    assert [one.name for one in strategies_of(["sticky", everything_to_the_last, "range"])] == [
        "sticky",
        "everything_to_the_last",
        "range",
    ]


def test_one_name_is_one_strategy():
    """A text is not the sequence of its letters."""
    assert strategies_of("range") == (BUILT_IN["range"],)


def test_none_is_refused():
    """A member that offers nothing could join no group."""
    with pytest.raises(ConfigurationError, match="must not be empty"):
        strategies_of([])


def test_two_of_one_name_are_refused():
    """Members that agree on the name would not know on which."""
    with pytest.raises(ConfigurationError, match="'alphabetical' occurs twice"):
        strategies_of([Alphabetical(), "range", Alphabetical()])


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (["cooperative-sticky"], True),
        (["cooperative-sticky", Alphabetical()], True),
        (["cooperative-sticky", "range"], False),
        (["sticky"], False),
    ],
)
def test_a_member_is_cooperative_if_all_it_offers_is(offered, expected):
    """It has to know before the group has chosen."""
    assert are_cooperative(strategies_of(offered)) is expected


# ---- what is dealt ---------------------------------------------------------------------------------------------


def test_what_is_dealt_is_told_of_everybody():
    """Any mapping of iterables of pairs will do; members that are not named get nothing."""
    dealt = checked_assignment(strategy_of(everything_to_the_last), PAIR, COUNTS, {})

    assert dealt == {"x": [], "y": [A0, A1, B0]}
    assert all(isinstance(one, TopicPartition) for one in dealt["y"])


def test_iterables_are_run_through_once():
    """A generator serves as well as a list."""
    dealt = checked_assignment(returning({"y": (one for one in (B0, A1, A0))}), PAIR, COUNTS, {})

    assert dealt == {"x": [], "y": [B0, A1, A0]}


def test_a_built_in_is_told_of_racks():
    """Members in racks get what is near to them."""
    pair = [SubscribedMember("x", frozenset("a"), rack="r2"), SubscribedMember("y", frozenset("a"), rack="r1")]
    racks = {A0: frozenset({"r1"}), A1: frozenset({"r2"})}

    assert checked_assignment(BUILT_IN["range"], pair, {"a": 2}, racks) == {"x": [A1], "y": [A0]}
    assert checked_assignment(BUILT_IN["roundrobin"], pair, {"a": 2}, racks) == {"x": [A0], "y": [A1]}


@pytest.mark.parametrize(
    ("dealt", "fault"),
    [
        pytest.param(None, "returned None instead of a mapping", id="nothing"),
        pytest.param([("x", [A0])], "instead of a mapping", id="a list"),
        pytest.param({"x": [A0], "z": [A1]}, "names 'z', who is not in the group", id="a stranger"),
        pytest.param({"x": 7}, "gives 'x' 7, which is not a list of partitions", id="no partitions"),
        pytest.param({"x": "a0"}, "gives 'x' 'a', which is not a", id="a text"),
        pytest.param({"x": [("a", "0")]}, r"\('a', '0'\), which is not a", id="a number that is a text"),
        pytest.param({"x": [("a", True)]}, r"\('a', True\), which is not a", id="a number that is a flag"),
        pytest.param({"x": [("a", 0, 1)]}, r"\('a', 0, 1\), which is not a", id="three"),
        pytest.param({"x": [["a", 0]]}, r"\['a', 0\], which is not a", id="a pair that is a list"),
        pytest.param({"x": [A2]}, r"gives 'x' a\[2\], which does not exist", id="a number too high"),
        pytest.param({"x": [("a", -1)]}, r"a\[-1\], which does not exist", id="a number too low"),
        pytest.param({"x": [("c", 0)]}, r"c\[0\], which does not exist", id="a topic that is not"),
        pytest.param(
            {"x": [B0]}, r"gives 'x' b\[0\], to whose topic it does not subscribe", id="a topic it does not want"
        ),
        pytest.param({"x": [A0], "y": [A0]}, r"gives a\[0\] twice, to 'x' and to 'y'", id="two takers"),
        pytest.param({"x": [A0, A0]}, r"gives a\[0\] twice, to 'x' and to 'x'", id="one taker twice"),
        pytest.param({"x": [A0, A1]}, r"leaves b\[0\] unassigned", id="one left out"),
        pytest.param({}, r"leaves a\[0\], a\[1\], b\[0\] unassigned", id="all left out"),
    ],
)
def test_what_is_no_assignment_is_refused(dealt, fault):
    """The error names the strategy, what is wrong with it and where to look; nobody was given anything."""
    with pytest.raises(RebalanceError, match=f"the assignment strategy 'mine' .*{fault}.* - correct your assignor"):
        checked_assignment(returning(dealt), PAIR, COUNTS, {})


def test_a_long_list_of_what_was_left_out_is_cut():
    """A thousand partitions are not all told."""
    with pytest.raises(RebalanceError, match=r"a\[0\], a\[1\], a\[2\] and 997 more unassigned"):
        checked_assignment(returning({}), PAIR, {"a": 1000}, {})


def runs_out(members, partitions):
    """Fails only when it is looked at."""
    return {member.member_id: (partitions[topic] for topic in ["missing"]) for member in members}


def raises(_members, _partitions):
    """Fails at once."""
    raise KeyError("missing")


@pytest.mark.parametrize("broken", [raises, runs_out])
def test_what_raises_is_told_as_the_strategys_mistake(broken):
    """The user's own error is its cause."""
    with pytest.raises(RebalanceError, match=f"'{broken.__name__}' raised KeyError: 'missing'") as caught:
        checked_assignment(strategy_of(broken), PAIR, COUNTS, {})

    assert isinstance(caught.value.__cause__, KeyError)


# ---- cooperative -----------------------------------------------------------------------------------------------

OWNING = [SubscribedMember("x", frozenset("a"), owned=frozenset({A0, A1})), SubscribedMember("y", frozenset("a"))]


def test_a_cooperative_strategy_may_leave_out_what_somebody_has():
    """Its owner lets go of it first; the round after gives it."""
    assert checked_assignment(returning({"x": [A0]}, is_cooperative=True), OWNING, {"a": 2}, {}) == {"x": [A0], "y": []}


def test_a_cooperative_strategy_may_not_leave_out_what_nobody_has():
    """Nobody would let go of it, so no round would follow to give it."""
    with pytest.raises(RebalanceError, match=r"leaves a\[2\] unassigned"):
        checked_assignment(returning({"x": [A0, A1]}, is_cooperative=True), OWNING, {"a": 3}, {})


def test_an_eager_strategy_may_leave_out_nothing():
    """All was given back before; what is left out would have no owner for good."""
    with pytest.raises(RebalanceError, match=r"leaves a\[1\] unassigned"):
        checked_assignment(returning({"x": [A0]}), OWNING, {"a": 2}, {})


def test_what_another_has_is_let_go_of_first():
    """A cooperative strategy that moves a partition at once gets it moved in two rounds: never has it two owners."""
    moves = returning({"x": [A0], "y": [A1]}, is_cooperative=True)

    assert checked_assignment(moves, OWNING, {"a": 2}, {}) == {"x": [A0], "y": []}
    assert checked_assignment(returning({"x": [A0], "y": [A1]}), OWNING, {"a": 2}, {}) == {"x": [A0], "y": [A1]}


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_ones_pass(name):
    """Whatever members want and claim, Kafka's own strategies deal what is an assignment."""
    everything = [TopicPartition(topic, number) for topic in "ab" for number in range(4)]
    members = st.lists(
        st.tuples(
            st.frozensets(st.sampled_from("abc")), st.frozensets(st.sampled_from(everything)), st.integers(-1, 2)
        ),
        min_size=1,
        max_size=4,
    )

    @settings(max_examples=30)
    @given(members, st.dictionaries(st.sampled_from("abd"), st.integers(0, 4)))
    def check(found, counts):
        group = [SubscribedMember(f"m{n}", topics, None, owned, age) for n, (topics, owned, age) in enumerate(found)]

        assert checked_assignment(BUILT_IN[name], group, counts, {}).keys() == {one.member_id for one in group}

    check()
