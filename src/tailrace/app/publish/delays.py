"""Delayed messages: the topics in which they wait, their headers, and the handler that publishes them when due.

Each declared delay has a topic, which only the app's group reads. A message may wait in a topic until it is due if its
time left is the topic's delay, or less by at most the shortest declared delay: by this difference, the records before
it can make it late. Otherwise, it waits in the topic of the longest delay below the time left for this delay, and is
then written to another topic for the rest.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from tailrace.app.added_headers import (
    DUE_AT,
    MAX_INT32,
    MAX_INT64,
    PREFIX,
    Header,
    added_headers,
    int_header,
    text_header,
    without_tailrace_headers,
)
from tailrace.app.handlers import Handler, ResolvedHandler, resolve_handler
from tailrace.app.options import AppConfig
from tailrace.app.policies import Retry
from tailrace.app.topics.names import publish_delay_topic
from tailrace.codecs.json_codec import JsonCodec
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import BufferFullError, ConfigurationError, PublishError, PublishTimeoutError
from tailrace.producer.encoding import Message
from tailrace.producer.publisher import Headers, OutgoingRecord
from tailrace.records import Record

__all__ = ["PublishDelays", "delays_of", "destination_headers", "undeclared"]

_TOPIC = PREFIX + "publish-topic"
_PARTITION = PREFIX + "publish-partition"
_TIMESTAMP = PREFIX + "publish-timestamp"
_AT = PREFIX + "publish-at"
"""Time at which a message is due, if another delay follows; ``DUE_AT`` is then the end of the current delay."""

_HANDLER = "delayed-publish"
"""Name of the handler in events and metrics."""


def destination_headers(added: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the headers of a delayed message from which it is published; none for other records."""
    return {name: added[name] for name in (_TOPIC, _PARTITION, _TIMESTAMP, _AT) if name in added}


def undeclared(where: str) -> PublishError:
    """Return the error for a delayed message of an app without declared delays."""
    return PublishError(f"{where}delay_ms and at need declared delays - set App(publish_delays_ms=[30_000])")


class PublishDelays:
    """Declared delays of an app.

    Args:
        group_id: group whose members publish the messages when they are due.
        delays_ms: declared delays in milliseconds.
        wall_clock: returns the time in seconds since the epoch.

    Attributes:
        topics: topics in which messages wait, with their delays in milliseconds.
    """

    def __init__(self, group_id: str, delays_ms: Iterable[int], wall_clock: Callable[[], float]) -> None:
        self._group_id, self._wall_clock = group_id, wall_clock
        by_delay = {one: publish_delay_topic(group_id, one) for one in sorted(delays_ms)}
        self._topic_of: Mapping[int, str] = by_delay
        self.topics: Mapping[str, int] = {topic: delay_ms for delay_ms, topic in by_delay.items()}

    def delayed(self, record: OutgoingRecord, delay_ms: object, at: object, where: str = "") -> OutgoingRecord:
        """Return the record that waits in place of ``record``; return ``record`` itself if it is due.

        Args:
            record: encoded message.
            delay_ms: ``Message.delay_ms``.
            at: ``Message.at``.
            where: beginning of error messages.

        Raises:
            PublishError: the time is invalid, or further away than the longest declared delay.
        """
        now_ms, longest_ms = self._now_ms, max(self._topic_of)
        due_ms = _due_ms(delay_ms, at, now_ms, where)
        if due_ms <= now_ms:
            return record
        if due_ms - now_ms > longest_ms:
            given = f"delay_ms={delay_ms}" if at is None else f"at={at}, in {due_ms - now_ms} ms,"
            raise PublishError(
                f"{where}{given} exceeds {longest_ms} ms, the longest of App(publish_delays_ms={[*self._topic_of]})"
                " - declare a longer delay"
            )
        added = [(_TOPIC, record.topic.encode())]
        if record.partition is not None:
            added.append((_PARTITION, b"%d" % record.partition))
        if record.timestamp_ms is not None:
            # The record that waits has the current time, because the topic's retention depends on it.
            added.append((_TIMESTAMP, b"%d" % record.timestamp_ms))
        topic, headers = self._next_wait((*without_tailrace_headers(record.headers), *added), due_ms, now_ms)
        return msgspec.structs.replace(record, topic=topic, headers=headers, partition=None, timestamp_ms=None)

    def handler(self, app: AppConfig, group_handlers: Sequence[Handler]) -> ResolvedHandler:
        """Return the handler that publishes the messages that are due, with the app's reactions to failures.

        A timeout or a full buffer is retried without limit. Another refusal counts as the failure of the message.

        Raises:
            ConfigurationError: another handler reads one of the topics.
        """
        for one in group_handlers:
            if taken := self.topics.keys() & set(one.topics):
                raise ConfigurationError(
                    f"{one.name} reads {min(taken)!r}, a topic of publish_delays_ms, which only the app itself reads"
                )
        backoff_ms = (app.retry or Retry()).max_backoff_ms
        retry = Retry(
            attempts=sys.maxsize,
            backoff_ms=min(200, backoff_ms),
            max_backoff_ms=backoff_ms,
            on=(PublishTimeoutError, BufferFullError),
        )
        declared = Handler(
            function=self._publish_due,
            name=_HANDLER,
            topics=tuple(self.topics),
            # Calls start in the order of the records, and the producer keeps this order. A lane for each key would make
            # records wait for the acknowledgement of the record before, and those without a key share a lane.
            order_by="none",
            retry=retry,
            codec=JsonCodec(),
            delays_ms=self.topics,
        )
        return resolve_handler(declared, replace(app, middleware=()), self._group_id, {})

    async def _publish_due(self, record: Record) -> Message:
        """Return the message to publish when a record has waited for its delay."""
        added, own = added_headers(record.headers), without_tailrace_headers(record.headers)
        topic = text_header(added, _TOPIC)
        if not topic or topic_name_fault(topic):
            raise PublishError(
                f"{record.topic_partition} offset {record.offset} has no valid header {_TOPIC}, so it was not written"
                " by app.publish(..., delay_ms=...)"
            )
        due_ms, now_ms = int_header(added, _AT, MAX_INT64), self._now_ms
        if due_ms is not None and due_ms > now_ms:
            destination = destination_headers(added)
            destination.pop(_AT)
            waiting, headers = self._next_wait((*own, *destination.items()), due_ms, now_ms)
            return Message(record.value, record.key, headers, topic=waiting)
        partition, timestamp_ms = int_header(added, _PARTITION, MAX_INT32), int_header(added, _TIMESTAMP, MAX_INT64)
        return Message(record.value, record.key, own, partition, topic, timestamp_ms)

    def _next_wait(self, headers: Sequence[Header], due_ms: int, now_ms: int) -> tuple[str, Headers]:
        """Return the topic in which a message waits next, and its headers."""
        left_ms, shortest_ms = due_ms - now_ms, min(self._topic_of)
        delay_ms = min((one for one in self._topic_of if one - shortest_ms <= left_ms <= one), default=0)
        until_ms = due_ms
        if not delay_ms:
            delay_ms = max(one for one in self._topic_of if one <= left_ms)
            until_ms = now_ms + delay_ms
        times = [(DUE_AT, b"%d" % until_ms)]
        if until_ms < due_ms:
            times.append((_AT, b"%d" % due_ms))
        return self._topic_of[delay_ms], (*headers, *times)

    @property
    def _now_ms(self) -> int:
        return math.ceil(self._wall_clock() * 1000)


def delays_of(
    app: AppConfig, group_id: str | None, wall_clock: Callable[[], float] | None = None
) -> PublishDelays | None:
    """Return the declared delays of an app; None if there are none.

    ``wall_clock`` returns the time in seconds since the epoch; None for the host's clock.

    Raises:
        ConfigurationError: the app has delays but no group, or the name of a topic is illegal.
    """
    if not app.publish_delays_ms:
        return None
    if group_id is None:
        raise ConfigurationError(
            "publish_delays_ms needs a group, whose members publish the messages when they are due"
            " - set it for the app, such as App(group_id='billing')"
        )
    return PublishDelays(group_id, app.publish_delays_ms, wall_clock or time.time)


def _due_ms(delay_ms: object, at: object, now_ms: int, where: str) -> int:
    if delay_ms is not None and at is not None:
        raise PublishError(f"{where}delay_ms={delay_ms!r} and at={at!r} contradict each other - pass one of them")
    if at is None:
        if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or delay_ms < 0:
            raise PublishError(f"{where}delay_ms must be a non-negative integer, not {delay_ms!r}")
        return now_ms + delay_ms
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise PublishError(
            f"{where}at must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(seconds=30),"
            f" not {at!r}"
        )
    return math.ceil(at.timestamp() * 1000)
