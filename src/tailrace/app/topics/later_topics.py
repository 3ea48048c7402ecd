"""Topics of a group's own for handlers' topics that are created while the app runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from tailrace.app.topics.creation import create_group_topics, create_topics_of
from tailrace.app.topics.routes import Routes
from tailrace.awaitables import settled
from tailrace.config import ConsumerConfig
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.record_sinks import refresh_metadata
from tailrace.errors import BrokerConnectionError, BrokerError
from tailrace.observe.events import TopicMissing
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition

__all__ = ["LaterTopics"]

_SHARE_OF_POLL_INTERVAL = 0.25
"""A rebalance callback that takes longer than ``max_poll_interval_ms`` ends the consumer."""


class LaterTopics:
    """Creates a topic's retry, dead-letter and replay topics before the first record of it is handled.

    Args:
        config: how to reach the brokers; its ``post_rebalance_callback`` is called afterwards.
        routes: those of the group.
        observer: told of created and missing topics.
    """

    def __init__(self, config: ConsumerConfig, routes: Routes, observer: Observer) -> None:
        self._config, self._routes, self._observer = config, routes, observer
        self._seen: frozenset[str] = frozenset()

    async def create(self) -> None:
        """Create those of the topics that exist at the start.

        Raises:
            BrokerError: a retry topic is not there and may not be made.
            BrokerConnectionError: no broker answers in ``start_timeout_ms``.
        """
        self._seen = await create_group_topics(self._config, self._routes, self._observer)

    async def rebalanced(
        self,
        consumer: Consumer,
        old: Mapping[TopicPartition, int | None],
        new: Mapping[TopicPartition, int | None],
    ) -> Mapping[TopicPartition, int] | None:
        """Create those of newly assigned topics; a ``post_rebalance_callback``."""
        topics = {one.topic for one in new if one.topic not in self._routes} - self._seen
        if topics and await self._created(topics):
            self._seen |= topics
            # Their replay topics are read without waiting for the metadata to become old.
            refresh_metadata(consumer)
        callback = self._config.post_rebalance_callback
        if callback is None:
            return None
        overrides = await settled(callback(consumer, old, new), "post_rebalance_callback")
        # The consumer checks it.
        return cast("Mapping[TopicPartition, int] | None", overrides)

    async def _created(self, topics: set[str]) -> bool:
        timeout_s = self._config.max_poll_interval_ms / 1000 * _SHARE_OF_POLL_INTERVAL
        try:
            async with asyncio.timeout(timeout_s):
                await create_topics_of(self._config, self._routes, topics, self._observer)
        except (BrokerConnectionError, BrokerError, TimeoutError) as error:
            reason = str(error) or f"the brokers did not answer within {timeout_s:.0f} s"
            for topic in sorted(topics):
                advice = "the next rebalance tries again; create its topics if none comes"
                self._observer.emit(TopicMissing(f"those for dead letters of {topic}", reason, advice))
            return False
        return True
