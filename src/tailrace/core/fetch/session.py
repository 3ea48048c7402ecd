"""Incremental fetch sessions (KIP-227): the broker remembers the partitions, so a request lists only changes.

There is one session per connection. A request is full (session epoch 0, all partitions) or incremental. Any error ends
the session, and the next request is full again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.error_codes import ErrorCode
from tailrace.protocol.fetch import FetchPartition, FetchResponse, ForgottenPartition
from tailrace.records import TopicPartition

__all__ = ["FetchSession", "SessionPart", "without_session"]

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_LAST_EPOCH = 0x7FFFFFFF
_NO_SESSION_EPOCH = -1


@dataclass(frozen=True, slots=True)
class SessionPart:
    """Fields of a fetch request that concern its session."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[ForgottenPartition, ...]


def without_session(wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
    """Return the session fields of a request that uses no session."""
    return SessionPart(0, _NO_SESSION_EPOCH, tuple(wanted.values()), ())


class FetchSession:
    """Client side of one session."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: Mapping[TopicPartition, FetchPartition] = {}
        """Partitions that the broker remembers."""
        self._requested: Mapping[TopicPartition, FetchPartition] = {}
        """Partitions that the broker remembers once it has answered the request in flight."""

    @property
    def is_full(self) -> bool:
        """True if the next request lists all partitions."""
        return self._epoch == 0

    def knows(self, partition: TopicPartition) -> bool:
        """Return True if the broker remembers a partition, so that answers contain it only after a change."""
        return partition in self._known

    def next_request(self, wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
        """Return the session fields of the next request, after whose answer the session contains ``wanted``."""
        # A partition without a change is nearly always the same object; a comparison by value is slow.
        known = self._known
        changed = {key: one for key, one in wanted.items() if (before := known.get(key)) is not one and before != one}
        if any(key in known and known[key].topic_id != one.topic_id for key, one in changed.items()):
            # A topic was recreated, so an incremental request would add and forget topics of the same name. A broker
            # that identifies topics by name would forget both.
            self.restart()
        self._requested = dict(wanted)
        if self.is_full:
            # A request with the id of the old session and epoch 0 ends that session and starts another.
            return SessionPart(self._id, 0, tuple(wanted.values()), ())
        forgotten: tuple[ForgottenPartition, ...] = ()
        if not known.keys() <= wanted.keys():
            forgotten = tuple(
                ForgottenPartition(one.partition, one.topic, one.topic_id)
                for key, one in known.items()
                if key not in wanted
            )
        return SessionPart(self._id, self._epoch, tuple(changed.values()), forgotten)

    def handle_answer(self, answer: FetchResponse) -> bool:
        """Update the session after an answer; return False if the answer contains only an error of the session."""
        if answer.error_code:
            self.restart()
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            return answer.error_code not in _SESSION_ERRORS
        if answer.session_id == 0:
            # The broker keeps no session: its cache is full, or it does not support sessions.
            self._id, self._epoch, self._known = 0, 0, {}
            return True
        self._id = answer.session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        self._known = self._requested
        return True

    def restart(self) -> None:
        """Make the next request full, because it is uncertain which partitions the broker remembers."""
        self._epoch, self._known = 0, {}
