"""Creation of a group's retry, dead-letter and replay topics for handlers' topics that are created after the start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from tailrace.app.topics.creation import create_group_topics, create_topics_of
from tailrace.app.topics.routes import Routes
from tailrace.awaitables import resolve_call
from tailrace.config import ConsumerConfig
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.record_sinks import refresh_metadata
from tailrace.errors import BrokerConnectionError, BrokerError
from tailrace.observe.events import TopicMissing
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition

__all__ = ["LaterTopics"]

_ADVICE = "create it, or wait: the next rebalance tries again"

_SHARE_OF_POLL_INTERVAL = 0.25
"""Maximum share of ``max_poll_interval_ms`` for creating topics. A longer rebalance callback would be canceled."""


class LaterTopics:
    """Creates the retry, dead-letter and replay topics for each handler's topic, before the first record is handled.

    Args:
        config: options of the consumer; its ``post_rebalance_callback`` is called after the creation.
        routes: routes of the group.
        observer: receives an event for each created or missing topic.
    """

    def __init__(self, config: ConsumerConfig, routes: Routes, observer: Observer) -> None:
        self._config, self._routes, self._observer = config, routes, observer
        self._checked: frozenset[str] = frozenset()
        """Handlers' topics whose retry, dead-letter and replay topics need not be created."""

    async def create(self) -> None:
        """Create the retry, dead-letter and replay topics of the handlers' topics that exist at the start.

        Raises:
            BrokerError: a retry topic does not exist and cannot be created.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
        """
        self._checked = await create_group_topics(self._config, self._routes, self._observer)

    async def after_rebalance(
        self,
        consumer: Consumer,
        old: Mapping[TopicPartition, int | None],
        new: Mapping[TopicPartition, int | None],
    ) -> Mapping[TopicPartition, int] | None:
        """Create the retry, dead-letter and replay topics for newly assigned topics, and call the user's callback.

        The consumer calls this method as its ``post_rebalance_callback``.
        """
        topics = {one.topic for one in new if one.topic not in self._routes} - self._checked
        if topics and await self._try_create(topics):
            self._checked |= topics
            # Without a refresh, the consumer would read the created replay topics only after metadata_max_age_ms.
            refresh_metadata(consumer)
        callback = self._config.post_rebalance_callback
        if callback is None:
            return None
        overrides = await resolve_call(callback(consumer, old, new), "post_rebalance_callback")
        # The consumer checks the type.
        return cast("Mapping[TopicPartition, int] | None", overrides)

    async def _try_create(self, topics: set[str]) -> bool:
        """Create topics; return False and emit events if no broker answers in time or a request fails."""
        timeout_s = self._config.max_poll_interval_ms / 1000 * _SHARE_OF_POLL_INTERVAL
        try:
            async with asyncio.timeout(timeout_s):
                await create_topics_of(self._config, self._routes, topics, self._observer)
        except (BrokerConnectionError, BrokerError, TimeoutError) as error:
            reason = str(error) or f"the brokers did not answer within {timeout_s:.0f} s"
            retries = (name for name, one in self._routes.retries.items() if one.origin in topics)
            dead_letters, _ = self._routes.dead_letters(topics)
            dead = (name for name, origins in dead_letters.items() if not origins.isdisjoint(topics))
            for name in sorted({*retries, *dead}):
                self._observer.emit(TopicMissing(name, reason, _ADVICE, error))
            return False
        return True
