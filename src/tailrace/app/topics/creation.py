"""Creation of a group's retry, dead-letter and replay topics, with as many partitions and replicas as their origins.

The origins of such a topic are the handlers' topics whose records it may contain. The topics are created when the group
starts or, for an origin that does not exist then, when a member is first assigned a partition of the origin. Topics of
delayed messages are created earlier, as start hooks may publish; they have as many partitions as the largest of the
handlers' topics, or one.

A topic that cannot be created is reported before the first record fails. If a retry topic or a topic of delayed
messages cannot be created at the start, the start fails, because records could not be retried or delayed. Without a
dead-letter topic, the group works, but records that have failed for good wait in their lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import cast

from tailrace.admin.topics import create_topic
from tailrace.app.topics.routes import Routes
from tailrace.awaitables import resolve_call
from tailrace.config import ConsumerConfig
from tailrace.consumer.sink_consumer import SinkConsumer
from tailrace.core.cluster_metadata import TopicInfo
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, UnknownTopicError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ReplayTopicMissing, TopicCreated, TopicMissing
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition

__all__ = ["LaterTopics", "create_delay_topics", "create_group_topics", "create_topics_of"]

_WAIT_S = 5.0
"""Seconds to wait until topics appear in the metadata; after the start of the group, also until a broker answers."""
_RETAINED_FOREVER = {"cleanup.policy": "delete", "retention.ms": -1}
_PUBLISH_ADVICE = "create it, or correct publish=, unless the brokers create topics automatically"
_RETAINED_BY_DEFAULT = {"cleanup.policy": "delete"}
_RETAINED_AFTER_DELAY_MS = 7 * 86_400_000
"""Time in milliseconds for which a topic of delayed messages retains them after they are due."""


async def create_group_topics(config: ConsumerConfig, routes: Routes, observer: Observer) -> frozenset[str]:
    """Create the missing retry, dead-letter and replay topics of a group, and report missing topics of ``publish=``.

    Returns:
        Origins that exist, for which ``create_topics_of`` need not be called.

    Raises:
        BrokerError: a retry topic does not exist and cannot be created.
        BrokerConnectionError: no broker answers within ``start_timeout_ms``.
    """
    retries = {name: {one.origin} for name, one in routes.retries.items()}
    dead_letters, replays = routes.dead_letters(())
    published = routes.publish_topics
    if not retries and not dead_letters and not published and not routes.matches_dead_letters:
        return frozenset()
    with closing(Cluster(config, observer)) as cluster:
        # The cluster watches one set of topics for each first argument; another call replaces the set.
        cluster.watch(
            observer, None if routes.matches_dead_letters else {*retries, *dead_letters, *replays, *published}
        )
        origins = _all_origins(retries, dead_letters)
        cluster.watch(routes, origins)
        await cluster.reach(config.start_timeout_ms / 1000)
        with contextlib.suppress(UnknownTopicError):
            # The consumer reports handlers' topics that remain unknown.
            await cluster.retrying(
                lambda: _find_topics(cluster, origins), timeout_s=_WAIT_S, what="looking for the topics"
            )
        if routes.matches_dead_letters:
            dead_letters, replays = routes.dead_letters(cluster.topology.topics)
            # A broker reports a missing topic only if the metadata request contains the topic's name.
            cluster.watch(routes, _all_origins(dead_letters) | origins)
            cluster.watch(observer, {*retries, *dead_letters, *replays, *published})
            await cluster.retrying(cluster.refresh, timeout_s=_WAIT_S, what="looking for the dead-letter topics")
        for name, existing in _missing_topics(cluster, retries):
            if error := await _create(cluster, name, existing, _RETAINED_BY_DEFAULT, observer):
                raise broker_error(error.code, f"retry topic {name!r} does not exist - {_advice(existing)}") from error
        await _create_missing(cluster, dead_letters, replays, observer)
        for name in _unknown_topics(cluster, published):
            observer.emit(TopicMissing(name, f"{published[name]} has publish={name!r}", _PUBLISH_ADVICE))
        return _all_origins(retries, dead_letters).intersection(cluster.topology.topics)


async def create_delay_topics(config: ConsumerConfig, routes: Routes, observer: Observer) -> None:
    """Create the missing topics in which delayed messages of a group wait; they must exist when a message is published.

    Raises:
        BrokerError: a topic does not exist and cannot be created.
        BrokerConnectionError: no broker answers within ``start_timeout_ms``.
    """
    delays_ms = routes.publish_delays_ms
    with closing(Cluster(config, observer)) as cluster:
        cluster.watch(routes, {*delays_ms, *routes.topics})
        await cluster.reach(config.start_timeout_ms / 1000)
        await cluster.retrying(cluster.refresh, timeout_s=_WAIT_S, what="looking for the topics of publish_delays_ms")
        handled = routes.topics - delays_ms.keys()
        existing = [one for name, one in cluster.topology.topics.items() if name in handled]
        for name in _unknown_topics(cluster, delays_ms):
            topic_config = {**_RETAINED_BY_DEFAULT, "retention.ms": delays_ms[name] + _RETAINED_AFTER_DELAY_MS}
            if error := await _create(cluster, name, existing, topic_config, observer):
                count = _partitions(existing)
                noun = "partition" if count == 1 else "partitions"
                advice = f"create it with {count} {noun}, or permit this app to create topics"
                raise broker_error(error.code, f"{name!r} of publish_delays_ms does not exist - {advice}") from error


async def create_topics_of(config: ConsumerConfig, routes: Routes, topics: Collection[str], observer: Observer) -> None:
    """Create the missing retry, dead-letter and replay topics for origins that did not exist when the group started.

    Raises:
        BrokerConnectionError: no broker answers within a few seconds.
    """
    retries = {name: {one.origin} for name, one in routes.retries.items() if one.origin in topics}
    dead_letters, replays = (
        {name: origins.intersection(topics) for name, origins in origins_of.items() if not origins.isdisjoint(topics)}
        for origins_of in routes.dead_letters(topics)
    )
    if not retries and not dead_letters:
        return
    with closing(Cluster(config, observer)) as cluster:
        cluster.watch(observer, {*retries, *dead_letters, *replays, *topics})
        await cluster.reach(_WAIT_S)
        for name, existing in _missing_topics(cluster, retries):
            if error := await _create(cluster, name, existing, _RETAINED_BY_DEFAULT, observer):
                observer.emit(TopicMissing(name, str(error), _advice(existing), error))
        await _create_missing(cluster, dead_letters, replays, observer)


async def _create_missing(
    cluster: Cluster, dead_letters: Mapping[str, set[str]], replays: Mapping[str, set[str]], observer: Observer
) -> None:
    for origins_of, topic_config, event in (
        (dead_letters, _RETAINED_FOREVER, TopicMissing),
        (replays, _RETAINED_BY_DEFAULT, ReplayTopicMissing),
    ):
        for name, existing in _missing_topics(cluster, origins_of):
            if error := await _create(cluster, name, existing, topic_config, observer):
                observer.emit(event(name, str(error), _advice(existing), error))


async def _find_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    for topic in topics:
        if topic not in cluster.topology.topics:
            await cluster.refresh()
            if topic not in cluster.topology.topics:
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")


def _all_origins(*origins_of: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the values of mappings from topics to their origins."""
    return frozenset(origin for one in origins_of for origins in one.values() for origin in origins)


def _unknown_topics(cluster: Cluster, topics: Iterable[str]) -> list[str]:
    """Return the topics that the brokers have reported as unknown."""
    return [one for one in topics if cluster.topology.errors.get(one) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def _missing_topics(cluster: Cluster, origins_of: Mapping[str, Iterable[str]]) -> list[tuple[str, list[TopicInfo]]]:
    """Return the names of missing topics that have existing origins, each with these origins."""
    topics = cluster.topology.topics
    found = [
        (name, [topics[origin] for origin in origins_of[name] if origin in topics])
        for name in _unknown_topics(cluster, origins_of)
    ]
    return [(name, existing) for name, existing in found if existing]


async def _create(
    cluster: Cluster, name: str, existing: Sequence[TopicInfo], config: Mapping[str, object], observer: Observer
) -> BrokerError | None:
    """Create a topic with as many partitions and replicas as its largest origin; return the brokers' error or None.

    Without an origin, create it with one partition and the brokers' default number of replicas.

    If another member has created the topic in the meantime, return None.
    """
    partitions = _partitions(existing)
    replicas = max((len(one.partitions[0].replicas) for one in existing), default=-1)
    try:
        await create_topic(cluster, name, partitions, replication_factor=replicas or -1, config=config)
    except BrokerError as error:
        return None if error.code == ErrorCode.TOPIC_ALREADY_EXISTS else error
    observer.emit(TopicCreated(name, partitions))
    return None


def _partitions(existing: Sequence[TopicInfo]) -> int:
    return max((len(one.partitions) for one in existing), default=1)


def _advice(existing: Sequence[TopicInfo]) -> str:
    names = ", ".join(sorted(one.name for one in existing))
    return f"create it with {_partitions(existing)} partitions, like {names}, or permit this app to create topics"


# ---- topics for origins that appear after the start ------------------------------------------------------------------

_ADVICE = "create it, or wait: the next rebalance tries again"

_SHARE_OF_POLL_INTERVAL = 0.25
"""Maximum share of ``max_poll_interval_ms`` for creating topics. A longer rebalance callback would be canceled."""


class LaterTopics:
    """Creates the retry, dead-letter and replay topics for each handler's topic, before the first record is handled.

    Args:
        config: options of the consumer; its ``post_rebalance_callback`` is called after the creation.
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
        consumer: SinkConsumer,
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
            consumer.refresh_metadata()
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
