"""Topics of a group's own that are not there are made when it starts, each like the topic that it is for.

Rule of this file: what it may not make is told before the first record fails. Without its retry topics a handler
cannot do what it says, so the app does not start; without dead letters it can, and what fails for good waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from penstock.admin.topics import create_topic
from penstock.app.routes import Routes
from penstock.config import ConsumerConfig
from penstock.core.topology import TopicInfo
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, UnknownTopicError, broker_error
from penstock.net.cluster import Cluster
from penstock.observe.events import TopicMade, TopicMissing
from penstock.observe.hooks import Observer

__all__ = ["make_own_topics"]

_GRACE_S = 5.0
"""How long the handlers' own topics may take to appear; they may have been made just now."""
_KEPT_FOR_EVER = {"cleanup.policy": "delete", "retention.ms": -1}
_KEPT = {"cleanup.policy": "delete"}


async def make_own_topics(config: ConsumerConfig, routes: Routes, observer: Observer) -> None:
    """Make what is missing of the retry topics and the dead letters of a group's handlers.

    Args:
        config: how to reach the brokers.
        routes: those of the group.
        observer: told what was made, and what is missing.

    Raises:
        BrokerError: a retry topic is not there and may not be made; it says what to do.
        BrokerConnectionError: no broker answers in ``start_timeout_ms``.
    """
    retries = {name: {one.origin} for name, one in routes.retries.items()}
    dead = routes.dead_letters
    if not retries and not dead:
        return
    with closing(Cluster(config, observer)) as cluster:
        origins = {origin for wanted in (retries, dead) for of in wanted.values() for origin in of}
        cluster.watch(observer, {*origins, *retries, *dead})
        await cluster.retrying(cluster.bootstrap, timeout_s=config.start_timeout_ms / 1000, what="reaching the cluster")
        with contextlib.suppress(UnknownTopicError):
            # What stays unknown, the consumer tells in its own words.
            await cluster.retrying(lambda: _see(cluster, origins), timeout_s=_GRACE_S, what="looking for the topics")
        for name, of in _missing(cluster, retries):
            if refused := await _made(cluster, name, of, _KEPT, observer):
                raise broker_error(refused.code, f"the retry topic {name!r} is not there: {_advice(of)}") from refused
        for name, of in _missing(cluster, dead):
            if refused := await _made(cluster, name, of, _KEPT_FOR_EVER, observer):
                observer.tell(TopicMissing(name, str(refused), _advice(of)))


async def _see(cluster: Cluster, topics: Iterable[str]) -> None:
    for topic in topics:
        if topic not in cluster.topology.topics:
            await cluster.refresh()
            if topic not in cluster.topology.topics:
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")


def _missing(cluster: Cluster, wanted: Mapping[str, Iterable[str]]) -> list[tuple[str, list[TopicInfo]]]:
    """Topics that the cluster says are not there, each with those that it is for and are."""
    topology, found = cluster.topology, []
    for name, origins in wanted.items():
        of = [topology.topics[origin] for origin in origins if origin in topology.topics]
        if of and topology.errors.get(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            found.append((name, of))
    return found


async def _made(
    cluster: Cluster, name: str, of: Sequence[TopicInfo], config: Mapping[str, object], observer: Observer
) -> BrokerError | None:
    """Make a topic; the error when the brokers do not let us. What somebody else makes meanwhile will do."""
    partitions, copies = _partitions(of), max(len(one.partitions[0].replicas) for one in of)
    try:
        await create_topic(cluster, name, partitions, replication_factor=copies or -1, config=config)
    except BrokerError as error:
        return None if error.code == ErrorCode.TOPIC_ALREADY_EXISTS else error
    observer.tell(TopicMade(name, partitions))
    return None


def _partitions(of: Sequence[TopicInfo]) -> int:
    return max(len(one.partitions) for one in of)


def _advice(of: Sequence[TopicInfo]) -> str:
    names = ", ".join(sorted(one.name for one in of))
    return f"make it with {_partitions(of)} partitions, as {names} has, or let this app make topics"
