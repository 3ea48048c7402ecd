"""Names of retry, replay and dead-letter topics are unique to their group, and can be parsed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError
from tailrace.app.handlers import Handlers
from tailrace.app.options import AppConfig
from tailrace.app.topics.names import DEAD, REPLAY, RETRY, NameForm, delay_name, topic_name
from tailrace.app.topics.routes import Routes

NAMES = st.text("ab.-_", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("template", "options", "name"),
    [
        (DEAD, {}, "orders.billing.dead"),
        (REPLAY, {}, "orders.billing.replay"),
        (RETRY, {"delay": "30s"}, "orders.billing.retry.30s"),
        ("dead-letters", {}, "dead-letters"),
        ("{group}_dlq", {}, "billing_dlq"),
    ],
)
def test_a_template_is_filled_in(template, options, name):
    """Topic, group and delay are inserted into the default templates and into user-defined ones."""
    assert topic_name(template, topic="orders", group="billing", **options) == name


def test_dead_letters_are_the_default():
    """The default template is that of dead-letter topics."""
    assert topic_name(topic="orders", group="billing") == "orders.billing.dead"


@pytest.mark.parametrize(
    ("template", "options", "hint"),
    [
        ("{topic}.{grup}.dead", {}, "the only fields are {topic}, {group}, {delay}"),
        ("{}.dead", {}, "the only fields are"),
        ("{0}.dead", {}, "the only fields are"),
        ("{topic.__class__}", {}, "the only fields are"),
        ("{topic!r}.dead", {}, "the only fields are"),
        ("{topic:>300}.dead", {}, "the only fields are"),
        ("{topic.dead", {}, "expected '}'"),
        (
            "{topic}/{group}",
            {},
            "'orders/billing', and a topic name may contain only a-z, A-Z, 0-9, '.', '_' and '-', not '/'",
        ),
        ("{topic}", {}, "the topic itself"),
        ("", {}, "1 to 249 characters"),
        ("..", {}, "1 to 249 characters"),
        ("{topic}." + "x" * 250, {}, "1 to 249 characters"),
        (RETRY, {}, "{delay} is for retry topics only"),
        (DEAD, {"delay": "30s"}, "it does not contain {delay}"),
    ],
)
def test_an_invalid_template_is_refused(template, options, hint):
    """A template that yields an illegal name, or the topic itself, is refused before the start, with advice."""
    with pytest.raises(ConfigurationError, match=re.escape(hint)) as caught:
        topic_name(template, topic="orders", group="billing", **options)

    assert "{topic}.{group}.dead" in str(caught.value)


def test_any_group_id_yields_legal_and_distinct_names():
    """Illegal characters of group ids are replaced, and group ids that then look alike yield distinct names."""
    groups = ["a/b", "a b", "a:b", "a-b", "ä-b", "日本", "a/b ", "\ud800"]
    names = [topic_name(topic="orders", group=group) for group in groups]

    assert len(set(names)) == len(groups)
    assert all(re.fullmatch(r"orders\.[a-zA-Z0-9._-]{1,30}\.dead", name) for name in names)
    assert names[3] == "orders.a-b.dead"
    assert names == [topic_name(topic="orders", group=group) for group in groups]


@given(st.text(max_size=60), st.text(max_size=60))
def test_names_of_two_groups_differ(one, other):
    """The dead-letter topics of two groups differ, whatever their ids."""
    same = topic_name(topic="t", group=one) == topic_name(topic="t", group=other)

    assert same is (one == other)


@given(NAMES, NAMES, st.sampled_from([DEAD, REPLAY, RETRY, "{topic}-{topic}", "dead-{group}.{topic}"]))
def test_a_name_is_parsed(topic, group, template):
    """The topic can be parsed from a name of the same group, but not from that of another group."""
    name = topic_name(template, topic=topic, group=group, delay="5s" if template == RETRY else None)

    assert set(NameForm(template, group=group).topics_of(name)) == {topic}
    assert not NameForm(template, group=group).is_shared_name(name)


# ---- routing -------------------------------------------------------------------------------------------------------


def routes_of(*handlers: Handlers, dead_letter: str | None = None, group: str = "g") -> Routes:
    options = AppConfig(dead_letter=dead_letter)
    return Routes(group, [one.with_defaults(options) for several in handlers for one in several.declared])


def handlers_of(*topics: str, **options: object) -> Handlers:
    handlers = Handlers()

    @handlers.handler(*topics, **options)
    async def handle(value: bytes) -> None: ...

    return handlers


@pytest.mark.parametrize(
    ("pattern", "template", "topic", "is_read"),
    [
        ("ord.*", None, "orders", True),
        ("ord.*", None, "orders.eu", True),
        ("ord.*", None, "orders.g.dead", False),
        ("ord.*", None, "orders.billing.dead", False),
        ("ord.*", None, "orders.g.retry.5s", False),
        ("ord.*", None, "orders.team.billing.retry.1500ms", False),
        ("ord.*", None, "orders.billing.retry.soon", True),
        ("ord.*", None, "orders.billing.replay", False),
        ("ord.*", None, "orders.g.replay", True),
        ("ord.*", "failed-{topic}", "failed-orders", False),
        (".*", "failed-{topic}", "failed-orders", False),
        ("failed-.*", "failed-{topic}", "failed-orders", True),
        ("failed-.*", "failed-{topic}", "failed-failed-orders", False),
        ("order.*", "order-failures", "order-failures", False),
        (".*[.]dead", "{topic}.{group}.dead", "orders.billing.dead", True),
        (".*[.]dead", "{topic}.{group}.dead", "orders.billing.dead.g.dead", False),
        ("(?i)ord.*", "{topic}.{group}.dead", "Orders.g.dead", False),
        (r"(o)rd\1", None, "ordo", True),
    ],
)
def test_a_pattern_matches_no_retry_replay_or_dead_letter_topic(pattern, template, topic, is_read):
    """A pattern matches no retry, replay or dead-letter topic of any group, unless it matches only such topics."""
    routes = routes_of(handlers_of(pattern=pattern), dead_letter=template)

    assert routes.reads(topic) is is_read
    assert (routes.receivers(topic) == [0]) is is_read


def test_replays_go_to_the_handler_of_their_topic():
    """Records of a replay topic go to the handlers of its topic, also if a pattern matches that topic."""
    routes = routes_of(handlers_of("clicks"), handlers_of(pattern="ord.*"), handlers_of(pattern="ord.*s"))

    assert [routes.receivers(topic) for topic in ("clicks.g.replay", "orders.g.replay", "order.g.replay")] == [
        [0],
        [1, 2],
        [1],
    ]
    assert [routes.origin(topic) for topic in ("clicks.g.replay", "orders.g.replay", "orders")] == [
        "clicks",
        "orders",
        "orders",
    ]
    assert "orders.g.replay" in routes
    assert "orders" not in routes
    assert "flights.g.replay" not in routes


def test_a_handler_that_names_a_topic_receives_it():
    """A handler receives a topic that it names, also if the name looks like that of a dead-letter topic."""
    routes = routes_of(handlers_of("orders.g.dead", "orders.other.replay"))

    assert routes.receivers("orders.g.dead") == routes.receivers("orders.other.replay") == [0]


@pytest.mark.parametrize("one", [{"pattern": "ord.*"}, {"topics": ["orders", "clicks"]}])
@pytest.mark.parametrize("other", [{"topics": ["orders"]}])
def test_two_handlers_of_one_topic_are_refused(one, other):
    """Two handlers of one topic, by name or pattern, are refused unless both have when=."""
    both = [handlers_of(*options.get("topics", ()), pattern=options.get("pattern")) for options in (one, other)]
    sharing = [
        handlers_of(*options.get("topics", ()), pattern=options.get("pattern"), when=bool) for options in (one, other)
    ]

    for order in (both, both[::-1], [both[0], sharing[1]]):
        with pytest.raises(ConfigurationError, match=r"both receive topic 'orders' in group 'g'.*when="):
            routes_of(*order)
    assert routes_of(*sharing).overlapping_handlers("orders") is None


def test_overlapping_patterns_are_found_with_their_topic():
    """overlapping_handlers() returns the two handlers whose patterns match the same topic."""
    first, second = handlers_of(pattern="ord.*"), handlers_of(pattern=".*ers")
    routes = routes_of(first, second)

    assert routes.overlapping_handlers("orderlies") is None
    assert routes.overlapping_handlers("orders") == tuple(routes.handlers)


# ---- delays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay_ms", "name"),
    [
        (5_000, "5s"),
        (60_000, "1m"),
        (600_000, "10m"),
        (7_200_000, "2h"),
        (90_000, "90s"),
        (1_500, "1500ms"),
        (1, "1ms"),
    ],
)
def test_delay_name_has_the_largest_exact_unit(delay_ms, name):
    """The name of a delay uses its largest exact unit, such as 10m for 600,000 ms."""
    assert delay_name(delay_ms) == name


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_delay_names_are_unique_and_legal(one, other):
    """Different delays have different names, and names are legal in a topic name."""
    assert (delay_name(one) == delay_name(other)) is (one == other)
    assert re.fullmatch(r"[0-9]+(ms|s|m|h)", delay_name(one))
