"""Publisher of a group's failed records to the group's retry topics and dead-letter topics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tailrace.app.added_headers import without_tailrace_headers
from tailrace.app.failures.dead_letters import (
    Failure,
    ForwardedRecord,
    dead_letter,
    earlier_attempts,
    retry_record,
)
from tailrace.app.publish.traces import noted_trace, replace_trace
from tailrace.app.topics.names import retry_topic, topic_name
from tailrace.app.topics.routes import Routes
from tailrace.errors import ProducerFencedError, PublishError, PublishTooLargeError
from tailrace.producer.publisher import OutgoingRecord, Publisher
from tailrace.records import Record

__all__ = ["DeadLetterPublisher", "OutgoingFailure"]


@dataclass(frozen=True, slots=True)
class OutgoingFailure:
    """Failed record to send to a retry or dead-letter topic.

    Attributes:
        topic: topic to which the record is sent.
        versions: returns versions of the record, the longest first; a shorter version is sent if the topic refuses the
            longer one as too large. Called for each attempt to send the record, because the delay of a retry topic
            begins when the record is sent.
    """

    topic: str
    versions: Callable[[], Sequence[ForwardedRecord]]


class DeadLetterPublisher:
    """Sends failed records of one group to their retry topics or dead-letter topics."""

    def __init__(self, routes: Routes, publisher: Publisher, wall_clock: Callable[[], float]) -> None:
        self._routes, self._group_id = routes, routes.group_id
        self._publisher, self._wall_clock = publisher, wall_clock

    def for_retry_topic(
        self, record: Record, failures: int, error: Exception, handler: str, delay_ms: int
    ) -> OutgoingFailure:
        """Return a failed record for the retry topic with the delay ``delay_ms``, which begins when it is sent.

        ``failures`` is the number of failed attempts since the record was read from its current topic.
        """
        origin, record = self._with_trusted_headers(_in_trace_of(error, record))
        topic = retry_topic(origin, self._group_id, delay_ms)
        failure = self._failure(record, failures, error, handler)
        return OutgoingFailure(topic, lambda: [retry_record(record, failure, math.ceil(self._now_ms) + delay_ms)])

    def for_dead_letter_topic(
        self, record: Record, failures: int, error: Exception, handler: str, template: str
    ) -> OutgoingFailure:
        """Return the dead letter of a record, for the topic whose name is built from ``template``.

        ``failures`` is the number of failed attempts since the record was read from its current topic.
        """
        origin, record = self._with_trusted_headers(_in_trace_of(error, record))
        topic = topic_name(template, topic=origin, group=self._group_id)
        failure = self._failure(record, failures, error, handler)
        return OutgoingFailure(
            topic, lambda: [dead_letter(record, failure), dead_letter(record, failure, is_brief=True)]
        )

    async def send(
        self, outgoing: OutgoingFailure, earlier_errors: Sequence[PublishTooLargeError] = ()
    ) -> PublishError | None:
        """Send the longest version that the topic accepts; return None if it is acknowledged, otherwise the error.

        Args:
            outgoing: failed record to send.
            earlier_errors: errors from earlier calls for versions that were too large, longest version first; these
                versions are not sent again.

        Raises:
            ProducerFencedError: another producer has the same transactional id.
        """
        refused: PublishError | None = earlier_errors[-1] if earlier_errors else None
        for message in outgoing.versions()[len(earlier_errors) :]:
            try:
                await self._publisher.publish(
                    OutgoingRecord(outgoing.topic, message.value, message.key, message.headers)
                )
            except PublishTooLargeError as too_large:
                refused = too_large
            except ProducerFencedError:
                raise
            except PublishError as other:
                return other
            else:
                return None
        return refused

    def _with_trusted_headers(self, record: Record) -> tuple[str, Record]:
        """Return the topic of a record's origin, and the record without headers that may be forged.

        Headers that begin with ``tailrace-`` are trusted only in the retry and replay topics of the group. In other
        topics, any producer may have written them, with a wrong number of deaths or the offset of another record.
        """
        if record.topic in self._routes:
            return self._routes.origin(record.topic), record
        kept = without_tailrace_headers(record.headers)
        if len(kept) != len(record.headers):
            record = msgspec.structs.replace(record, headers=kept)
        return record.topic, record

    def _failure(self, record: Record, failures: int, error: Exception, handler: str) -> Failure:
        attempts = earlier_attempts(record) + failures
        return Failure(error, attempts, handler, self._group_id, int(self._now_ms))

    @property
    def _now_ms(self) -> float:
        return self._wall_clock() * 1000


def _in_trace_of(error: Exception, record: Record) -> Record:
    """Return the record with the trace headers of the attempt that raised ``error``, if there are any."""
    trace = noted_trace(error)
    if not trace:
        return record
    return msgspec.structs.replace(record, headers=tuple(replace_trace(record.headers, trace)))
