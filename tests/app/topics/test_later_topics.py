"""Retry, replay and dead-letter topics that cannot be created when a topic appears."""

from __future__ import annotations

from tailrace import App, TopicPartition
from tailrace.app.options import AppConfig
from tailrace.app.topics.creation import LaterTopics
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.embedded.cluster import free_ports
from tailrace.observe.events import TopicMissing
from tailrace.observe.hooks import Observer

DEAD = "{topic}.{group}.dead"
OPTIONS = AppConfig(dead_letter=DEAD)


async def test_unreachable_brokers_are_reported_with_the_names_of_the_topics(recorder):
    """If brokers are unreachable, an event names each of the group's topics that may be missing."""
    app = App(bootstrap_servers="localhost:9092", group_id="billing")

    @app.handler(pattern="orders[.].*")
    async def handle(value: bytes) -> None: ...

    config = resolve({"bootstrap_servers": f"localhost:{free_ports(1)[0]}", "max_poll_interval_ms": 2_000})
    routes = Routes("billing", [one.with_defaults(OPTIONS) for one in app.declared])
    own_topics = LaterTopics(config, routes, Observer((recorder,)))

    assert await own_topics.after_rebalance(None, {}, {TopicPartition("orders.eu", 0): None}) is None

    (missing,) = recorder.of(TopicMissing)
    assert missing.topic == "orders.eu.billing.dead"
