"""Strategies that a member may offer, and checks of their assignments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.config import ASSIGNMENT_STRATEGIES
from tailrace.consumer.group.assignors import (
    BUILT_IN,
    Strategy,
    are_cooperative,
    checked_assignment,
    strategies_of,
    strategy_of,
)
from tailrace.consumer.group.range_assignor import SubscribedMember
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
B0 = TopicPartition("b", 0)
PAIR = [SubscribedMember("x", frozenset("a")), SubscribedMember("y", frozenset("ab"))]
COUNTS = {"a": 2, "b": 1}


def everything_to_the_last(members, partitions):
    """Assign everything to one member."""
    last = members[-1]
    return {last.member_id: [(topic, n) for topic in sorted(last.topics) for n in range(partitions[topic])]}


class Alphabetical:
    """User-defined strategy, as an object with a name."""

    name = "alphabetical"
    is_cooperative = True

    def __call__(self, members, partitions):
        first = min(members, key=lambda member: member.member_id)
        return {first.member_id: {(topic, n) for topic in first.topics for n in range(partitions.get(topic, 0))}}


def returning(assigned, *, is_cooperative: bool = False) -> Strategy:
    return Strategy("mine", lambda _members, _partitions, _racks: assigned, is_cooperative)


# ---- offers ----------------------------------------------------------------------------------------------------


def test_built_ins_have_kafkas_names():
    """The built-in strategies have Kafka's names, and only cooperative-sticky is cooperative."""
    assert tuple(sorted(BUILT_IN)) == tuple(sorted(ASSIGNMENT_STRATEGIES))
    assert all(strategy.name == name and strategy_of(name) is strategy for name, strategy in BUILT_IN.items())
    assert [name for name, strategy in BUILT_IN.items() if strategy.is_cooperative] == ["cooperative-sticky"]


def test_a_strategy_has_the_name_of_its_function_or_object():
    """A function has its ``__name__`` and is eager; an object has its ``name``, and may declare to be cooperative."""
    assert strategy_of(everything_to_the_last).name == "everything_to_the_last"
    assert not strategy_of(everything_to_the_last).is_cooperative
    assert strategy_of(Alphabetical()).name == "alphabetical"
    assert strategy_of(Alphabetical()).is_cooperative


def test_strategies_of_one_function_are_equal():
    """Two members of one process offer equal strategies."""
    assert strategy_of(everything_to_the_last) == strategy_of(everything_to_the_last)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("cooperative_sticky", "cooperative-sticky"), ("Range", "range"), ("round-robin", "roundrobin")],
)
def test_unknown_name_suggests_the_nearest(wrong, meant):
    """The error for an unknown name suggests the nearest one and lists all built-ins."""
    with pytest.raises(ConfigurationError, match=f"'{wrong}' - did you mean '{meant}'") as caught:
        strategy_of(wrong)

    assert all(name in str(caught.value) for name in BUILT_IN)


def test_unknown_name_lists_the_built_ins():
    """The error lists the built-ins if no name is similar."""
    with pytest.raises(ConfigurationError, match="use one of range, roundrobin, sticky, cooperative-sticky"):
        strategy_of("xyz")


async def by_coroutine(_members, _partitions):
    """Coroutine function."""


@pytest.mark.parametrize("wrong", [7, None, Alphabetical, by_coroutine], ids=["7", "None", "a class", "a coroutine"])
def test_strategy_must_be_a_plain_function(wrong):
    """A class or a coroutine function is refused."""
    with pytest.raises(ConfigurationError, match=r"must be one of .* or a plain function"):
        strategy_of(wrong)


class Nameless:
    """Callable without a name."""

    def __call__(self, members, partitions):
        """Never called."""


def test_strategy_must_have_a_name():
    """A strategy without a name is refused, as members agree on a strategy by name."""
    with pytest.raises(ConfigurationError, match="set its attribute `name`"):
        strategy_of(Nameless())


def test_function_must_not_have_the_name_of_a_built_in():
    """A function with the name of a built-in is refused, as members with Kafka's would accept its assignments."""

    def sticky(_members, _partitions):
        """Never called."""

    with pytest.raises(ConfigurationError, match="has the name of the built-in strategy 'sticky'"):
        strategy_of(sticky)


def test_strategies_keep_their_order():
    """Strategies keep their order, the most preferred first."""
    assert [one.name for one in strategies_of(["sticky", everything_to_the_last, "range"])] == [
        "sticky",
        "everything_to_the_last",
        "range",
    ]


def test_single_name_is_one_strategy():
    """A single name is one strategy, and not a sequence of characters."""
    assert strategies_of("range") == (BUILT_IN["range"],)


def test_empty_list_of_strategies_is_refused():
    """An empty list of strategies is refused, as the member could join no group."""
    with pytest.raises(ConfigurationError, match="must not be empty"):
        strategies_of([])


def test_duplicate_name_is_refused():
    """A duplicate name is refused, as the group chooses a strategy by name."""
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
def test_member_is_cooperative_if_all_its_strategies_are(offered, expected):
    """A member is cooperative only if all of its strategies are, as it must know this before the group chooses one."""
    assert are_cooperative(strategies_of(offered)) is expected


# ---- results ---------------------------------------------------------------------------------------------------


def test_every_member_has_an_entry():
    """A strategy may return any mapping of iterables; members that it does not name get nothing."""
    assigned = checked_assignment(strategy_of(everything_to_the_last), PAIR, COUNTS, {})

    assert assigned == {"x": [], "y": [A0, A1, B0]}
    assert all(isinstance(one, TopicPartition) for one in assigned["y"])


def test_strategies_may_be_given_as_a_generator():
    """A generator of strategies is consumed once."""
    assigned = checked_assignment(returning({"y": (one for one in (B0, A1, A0))}), PAIR, COUNTS, {})

    assert assigned == {"x": [], "y": [B0, A1, A0]}


def test_built_ins_receive_racks():
    """Built-in strategies receive racks, with which range assigns near partitions."""
    pair = [SubscribedMember("x", frozenset("a"), rack="r2"), SubscribedMember("y", frozenset("a"), rack="r1")]
    racks = {A0: frozenset({"r1"}), A1: frozenset({"r2"})}

    assert checked_assignment(BUILT_IN["range"], pair, {"a": 2}, racks) == {"x": [A1], "y": [A0]}
    assert checked_assignment(BUILT_IN["roundrobin"], pair, {"a": 2}, racks) == {"x": [A0], "y": [A1]}


@pytest.mark.parametrize(
    ("assigned", "fault"),
    [
        pytest.param(None, "returned None instead of a mapping", id="nothing"),
        pytest.param([("x", [A0])], "instead of a mapping", id="a list"),
        pytest.param({"x": [A0], "z": [A1]}, "names 'z', which is not a member of the group", id="a stranger"),
        pytest.param({"x": 7}, "returned 7, which is not a list of partitions, for 'x'", id="no partitions"),
        pytest.param({"x": "a0"}, "returned 'a', which is not a tuple .*, for 'x'", id="a text"),
        pytest.param({"x": [("a", "0")]}, r"\('a', '0'\), which is not a", id="a number that is a text"),
        pytest.param({"x": [("a", True)]}, r"\('a', True\), which is not a", id="a number that is a flag"),
        pytest.param({"x": [("a", 0, 1)]}, r"\('a', 0, 1\), which is not a", id="three"),
        pytest.param({"x": [["a", 0]]}, r"\['a', 0\], which is not a", id="a pair that is a list"),
        pytest.param({"x": [A2]}, r"assigns a\[2\], which does not exist, to 'x'", id="a number too high"),
        pytest.param({"x": [("a", -1)]}, r"a\[-1\], which does not exist", id="a number too low"),
        pytest.param({"x": [("c", 0)]}, r"c\[0\], which does not exist", id="a topic that is not"),
        pytest.param(
            {"x": [B0]}, r"assigns b\[0\] to 'x', which does not subscribe to the topic", id="a topic it does not want"
        ),
        pytest.param({"x": [A0], "y": [A0]}, r"assigns a\[0\] twice, to 'x' and to 'y'", id="two members"),
        pytest.param({"x": [A0, A0]}, r"assigns a\[0\] twice, to 'x' and to 'x'", id="one member twice"),
        pytest.param({"x": [A0, A1]}, r"leaves b\[0\] unassigned", id="one left out"),
        pytest.param({}, r"leaves a\[0\], a\[1\], b\[0\] unassigned", id="all left out"),
    ],
)
def test_invalid_assignment_is_refused(assigned, fault):
    """An invalid assignment raises an error that names the strategy, the fault and advice."""
    with pytest.raises(RebalanceError, match=f"the assignment strategy 'mine' .*{fault}.* - correct your assignor"):
        checked_assignment(returning(assigned), PAIR, COUNTS, {})


def test_long_list_of_unassigned_partitions_is_shortened():
    """The error for many unassigned partitions names three of them and counts the others."""
    with pytest.raises(RebalanceError, match=r"a\[0\], a\[1\], a\[2\] and 997 more unassigned"):
        checked_assignment(returning({}), PAIR, {"a": 1000}, {})


def runs_out(members, partitions):
    """Return generators that raise."""
    return {member.member_id: (partitions[topic] for topic in ["missing"]) for member in members}


def raises(_members, _partitions):
    """Raise at once."""
    raise KeyError("missing")


@pytest.mark.parametrize("broken", [raises, runs_out])
def test_exception_of_a_strategy_is_a_rebalance_error(broken):
    """The exception of a strategy is raised as the cause of a rebalance error."""
    with pytest.raises(RebalanceError, match=f"'{broken.__name__}' raised KeyError: 'missing'") as caught:
        checked_assignment(strategy_of(broken), PAIR, COUNTS, {})

    assert isinstance(caught.value.__cause__, KeyError)


# ---- cooperative -----------------------------------------------------------------------------------------------

OWNING = [SubscribedMember("x", frozenset("a"), owned=frozenset({A0, A1})), SubscribedMember("y", frozenset("a"))]


def test_cooperative_strategy_may_leave_owned_partitions_unassigned():
    """A cooperative strategy may leave owned partitions unassigned, which their owner then releases."""
    assert checked_assignment(returning({"x": [A0]}, is_cooperative=True), OWNING, {"a": 2}, {}) == {"x": [A0], "y": []}


def test_cooperative_strategy_must_assign_partitions_without_an_owner():
    """A cooperative strategy must assign partitions without an owner, as no release would cause another round."""
    with pytest.raises(RebalanceError, match=r"leaves a\[2\] unassigned"):
        checked_assignment(returning({"x": [A0, A1]}, is_cooperative=True), OWNING, {"a": 3}, {})


def test_eager_strategy_must_assign_all_partitions():
    with pytest.raises(RebalanceError, match=r"leaves a\[1\] unassigned"):
        checked_assignment(returning({"x": [A0]}), OWNING, {"a": 2}, {})


def test_cooperative_moves_take_two_rounds():
    """A partition never has two owners, even if a cooperative strategy moves it at once."""
    moves = returning({"x": [A0], "y": [A1]}, is_cooperative=True)

    assert checked_assignment(moves, OWNING, {"a": 2}, {}) == {"x": [A0], "y": []}
    assert checked_assignment(returning({"x": [A0], "y": [A1]}), OWNING, {"a": 2}, {}) == {"x": [A0], "y": [A1]}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_ins_return_valid_assignments(name):
    """The built-in strategies return valid assignments for any subscriptions and claims."""
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
