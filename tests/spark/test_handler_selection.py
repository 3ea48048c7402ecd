"""Selection of handlers and topics, as in the app."""

from __future__ import annotations

import uuid

import pytest

from tailrace import App, ConfigurationError, TopicPartition
from tailrace.config import resolve
from tailrace.observe.hooks import Observer
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore


@pytest.mark.parametrize(
    ("topic", "is_read"),
    [("orders", True), ("orders.g.dead", False), ("failed-orders", False), ("orders.g.replay", False)],
)
def test_a_pattern_does_not_match_dead_letter_topics(topic, is_read):
    """A pattern does not match dead-letter topics, so that failures are not handled again forever."""
    app = App(group_id="g", dead_letter="failed-{topic}")

    @app.handler(pattern="ord.*|failed-.*|orders[.]g.*")
    async def handle(value: bytes) -> None: ...

    (pattern,) = select_handlers(app, handle, "g").patterns

    assert pattern.fullmatch(topic) is is_read


@pytest.mark.parametrize("excludes", [True, False])
def test_a_pattern_does_not_match_internal_topics(kafka_server, excludes):
    """A pattern does not match internal topics unless ``exclude_internal_topics=False``."""
    topic, group = f"t-{uuid.uuid4().hex[:12]}", f"g-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(topic, 1)
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, exclude_internal_topics=excludes)

    @app.handler(pattern=f"{topic}|__consumer_offsets")
    async def handle(value: bytes) -> None: ...

    patterns = select_handlers(app, handle, group).patterns
    with SparkOffsetStore(resolve(app.options), group, Observer()) as store:
        store.commit({TopicPartition(topic, 0): PartitionCommit(0)}, "")  # creates __consumer_offsets
        found = {one.topic for one in store.partitions((), patterns)}

    assert found == ({topic} if excludes else {topic, "__consumer_offsets"})


def test_a_bound_method_is_selected_also_if_it_was_declared_twice():
    """A bound method is a new object at each access; it selects the handler of its object, and of no equal object."""

    class Service:
        async def on(self, value: bytes) -> None: ...

        def __eq__(self, other):
            return True

        __hash__ = None

    app, service, other = App(group_id="g"), Service(), Service()
    app.handler("other")(other.on)
    app.handler("a")(service.on)
    app.handler("b")(service.on)

    assert select_handlers(app, service.on, "g").topics == ("a", "b")


def test_an_ambiguous_name_is_refused():
    """A handler name that matches several handlers raises, unless it is the full name of one."""
    app = App(group_id="g")

    def declare(name: str, *topics: str):
        async def handle(value: bytes) -> None: ...

        handle.__qualname__ = name
        return app.handler(*topics)(handle)

    first = declare("handle", "fares", "tips")
    declare("Orders.handle", "orders")

    assert select_handlers(app, "handle", "g").topics == ("fares", "tips")
    assert select_handlers(app, "Orders.handle", "g").topics == ("orders",)
    app.handler("rides")(first)
    assert select_handlers(app, "handle", "g").topics == ("fares", "tips", "rides")
    declare("handle", "bills")
    with pytest.raises(ConfigurationError, match=r"several handlers of the app are named 'handle': .* - pass"):
        select_handlers(app, "handle", "g")
    assert select_handlers(app, first, "g").topics == ("fares", "tips", "rides")
