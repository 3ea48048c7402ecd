"""A group's own topics have names that no other group's have, and whose topics can be read back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError
from tailrace.app.handlers import Handlers
from tailrace.app.topics.names import DEAD, REPLAY, RETRY, NameForm, topic_name
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
def test_topics_are_the_groups_own(template, options, name):
    """A template is filled in with the topic, the group and the delay; one of the user's own will do."""
    assert topic_name(template, topic="orders", group="billing", **options) == name


def test_dead_letters_are_the_default():
    """Without a template it is the topic of dead letters."""
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
        ("{topic}/{group}", {}, "'orders/billing', and no topic's name has '/'"),
        ("{topic}", {}, "the topic itself"),
        ("", {}, "1 to 249 characters"),
        ("..", {}, "1 to 249 characters"),
        ("{topic}." + "x" * 250, {}, "1 to 249 characters"),
        (RETRY, {}, "{delay} is for retry topics only"),
        (DEAD, {"delay": "30s"}, "it lacks {delay}"),
    ],
)
def test_a_template_that_will_not_do_is_refused(template, options, hint):
    """What gives no legal name, or that of the topic itself, is told before anything is started, with a way out."""
    with pytest.raises(ConfigurationError, match=re.escape(hint)) as told:
        topic_name(template, topic="orders", group="billing", **options)

    assert "{topic}.{group}.dead" in str(told.value)


def test_groups_of_any_name_have_topics():
    """A group id with other characters is replaced, and those that then look alike stay apart."""
    groups = ["a/b", "a b", "a:b", "a-b", "ä-b", "日本", "a/b ", "\ud800"]
    names = [topic_name(topic="orders", group=group) for group in groups]

    assert len(set(names)) == len(groups)
    assert all(re.fullmatch(r"orders\.[a-zA-Z0-9._-]{1,30}\.dead", name) for name in names)
    assert names[3] == "orders.a-b.dead"
    assert names == [topic_name(topic="orders", group=group) for group in groups]


@given(st.text(max_size=60), st.text(max_size=60))
def test_two_groups_have_two_names(one, other):
    """Whatever two groups are called, their dead letters do not meet."""
    same = topic_name(topic="t", group=one) == topic_name(topic="t", group=other)

    assert same is (one == other)


@given(NAMES, NAMES, st.sampled_from([DEAD, REPLAY, RETRY, "{topic}-{topic}", "dead-{group}.{topic}"]))
def test_a_name_is_read_back(topic, group, template):
    """Whoever knows the group finds the topic that a name was made for, and in no other way."""
    name = topic_name(template, topic=topic, group=group, delay="5s" if template == RETRY else None)

    assert set(NameForm(template, group=group).topics_of(name)) == {topic}
    assert not NameForm(template, group=group).is_of_all(name)


# ---- what handlers take --------------------------------------------------------------------------------------------


def routes_of(*handlers: Handlers, dead_letter: str | None = None, group: str = "g") -> Routes:
    return Routes(group, [(one, dead_letter) for several in handlers for one in several.declared])


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
def test_a_pattern_takes_no_letters(pattern, template, topic, is_read):
    """Neither what this group writes for topics that it matches nor what others do; its own replays it reads."""
    routes = routes_of(handlers_of(pattern=pattern), dead_letter=template)

    assert routes.reads(topic) is is_read
    assert (routes.receivers(topic) == [0]) is is_read


def test_replays_go_to_whoever_takes_their_topic():
    """By its name a replay topic leads to the topic that it is for, also where that is known by a pattern alone."""
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


def test_what_a_pattern_is_called_is_read_by_name():
    """A handler that names a topic has it, whatever it is called."""
    routes = routes_of(handlers_of("orders.g.dead", "orders.other.replay"))

    assert routes.receivers("orders.g.dead") == routes.receivers("orders.other.replay") == [0]


@pytest.mark.parametrize("one", [{"pattern": "ord.*"}, {"topics": ["orders", "clicks"]}])
@pytest.mark.parametrize("other", [{"topics": ["orders"]}])
def test_a_topic_that_two_handlers_take_is_refused(one, other):
    """By name or by pattern, in whichever order they are declared; with when= for both they share it."""
    both = [handlers_of(*said.get("topics", ()), pattern=said.get("pattern")) for said in (one, other)]
    sharing = [handlers_of(*said.get("topics", ()), pattern=said.get("pattern"), when=bool) for said in (one, other)]

    for order in (both, both[::-1], [both[0], sharing[1]]):
        with pytest.raises(ConfigurationError, match=r"both receive topic 'orders' in group 'g'.*when="):
            routes_of(*order)
    assert routes_of(*sharing).contested("orders") is None


def test_patterns_that_meet_are_known_when_a_topic_is():
    """Two patterns may never meet; where they do, the two handlers are named."""
    first, second = handlers_of(pattern="ord.*"), handlers_of(pattern=".*ers")
    routes = routes_of(first, second)

    assert routes.contested("orderlies") is None
    assert routes.contested("orders") == (first.declared[0], second.declared[0])
