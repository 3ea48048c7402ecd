"""Letters on their way: to a retry topic or to the dead letters of one group.

Rule of this file: a letter is sent when the topic has acknowledged it. What follows from a refusal is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tailrace.app.failures.dead_letters import (
    Failure,
    Letter,
    attempts_before,
    dead_letter,
    retry_letter,
    without_ours,
)
from tailrace.app.topics.names import topic_name
from tailrace.app.topics.retry_topics import retry_topic
from tailrace.app.topics.routes import Routes
from tailrace.errors import ProducerFencedError, PublishError, PublishTooLargeError
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["DeadLetterPublisher", "OutgoingLetter"]


@dataclass(frozen=True, slots=True)
class OutgoingLetter:
    """What is to be written about a record, and where."""

    topic: str
    write: Callable[[], Sequence[Letter]]
    """Anew for each attempt to send it: a letter, and those to send where the one before is too large."""


class DeadLetterPublisher:
    """Writes and sends one group's letters.

    Args:
        routes: the group's.
        publisher: what they are sent with.
        wall_clock: seconds since the epoch.
    """

    def __init__(self, routes: Routes, publisher: Publisher, wall_clock: Callable[[], float]) -> None:
        self._routes, self._group_id = routes, routes.group_id
        self._publisher, self._wall_clock = publisher, wall_clock

    def for_later(self, record: Record, failures: int, error: Exception, handler: str, delay_ms: int) -> OutgoingLetter:
        """To the retry topic: it is due so long after it is sent."""
        origin, record = self._as_ours(record)
        topic = retry_topic(origin, self._group_id, delay_ms)
        failure = self._failure(record, failures, error, handler)
        return OutgoingLetter(topic, lambda: [retry_letter(record, failure, math.ceil(self._now_ms) + delay_ms)])

    def for_the_dead(
        self, record: Record, failures: int, error: Exception, handler: str, template: str
    ) -> OutgoingLetter:
        """To the dead letters."""
        origin, record = self._as_ours(record)
        topic = topic_name(template, topic=origin, group=self._group_id)
        failure = self._failure(record, failures, error, handler)
        return OutgoingLetter(
            topic, lambda: [dead_letter(record, failure), dead_letter(record, failure, is_brief=True)]
        )

    async def send(self, addressed: OutgoingLetter, before: Sequence[PublishTooLargeError] = ()) -> PublishError | None:
        """Send the first letter that is not too large; why not, when the topic takes none.

        Args:
            addressed: what may be sent.
            before: what became of the first ones of these, when they were sent before.

        Raises:
            ProducerFencedError: another process publishes in our place.
        """
        refused: PublishError | None = before[-1] if before else None
        for letter in addressed.write()[len(before) :]:
            try:
                await self._publisher.publish(addressed.topic, letter.value, key=letter.key, headers=letter.headers)
            except PublishTooLargeError as too_large:
                refused = too_large
            except ProducerFencedError:
                raise
            except PublishError as other:
                return other
            else:
                return None
        return refused

    def _as_ours(self, record: Record) -> tuple[str, Record]:
        """Return the topic that a record is of in this group, and the record without headers of others.

        Only the group's own topics carry headers of its own: anyone may write them into the others, such as a forged
        count of deaths, or the offset of another record as the origin.
        """
        if record.topic in self._routes:
            return self._routes.origin(record.topic), record
        kept = without_ours(record.headers)
        if len(kept) != len(record.headers):
            record = msgspec.structs.replace(record, headers=kept)
        return record.topic, record

    def _failure(self, record: Record, failures: int, error: Exception, handler: str) -> Failure:
        attempts = attempts_before(record) + failures
        return Failure(error, attempts, handler, self._group_id, int(self._now_ms))

    @property
    def _now_ms(self) -> float:
        return self._wall_clock() * 1000
