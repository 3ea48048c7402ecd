"""Incremental fetch sessions (KIP-227): the broker remembers the partitions, so a request names only changes.

There is one session per broker. A request is full (session epoch 0, all partitions) or incremental. Any error of a
session ends it, and the next request is full again.
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
    """Client side of the session with one broker."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, FetchPartition] = {}
        """Partitions that the broker remembers."""
        self._requested: Mapping[TopicPartition, FetchPartition] = {}

    @property
    def is_full(self) -> bool:
        """True if the next request names all partitions."""
        return self._epoch == 0

    def knows(self, partition: TopicPartition) -> bool:
        """Return True if the broker remembers a partition, so that answers name the partition only after a change."""
        return partition in self._known

    def ask(self, wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
        """Return the session fields of the next request, by which the broker fetches exactly ``wanted``."""
        # Ids are nearly always the same objects; comparing two of them is slow.
        if any(
            (known := self._known.get(key)) is not None
            and known.topic_id is not one.topic_id
            and known.topic_id != one.topic_id
            for key, one in wanted.items()
        ):
            # A topic was recreated. A broker that identifies topics by name would forget both topics.
            self.lost()
        self._requested = dict(wanted)
        if self.is_full:
            # The id of an old session with epoch 0 ends that session and starts another.
            return SessionPart(self._id, 0, tuple(wanted.values()), ())
        changed = tuple(one for key, one in wanted.items() if self._known.get(key) != one)
        forgotten = tuple(
            ForgottenPartition(one.partition, one.topic, one.topic_id)
            for key, one in self._known.items()
            if key not in wanted
        )
        return SessionPart(self._id, self._epoch, changed, forgotten)

    def answered(self, answer: FetchResponse) -> bool:
        """Process an answer; return False if it only reports that the broker has ended the session."""
        if answer.error_code:
            self.lost()
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            return answer.error_code not in _SESSION_ERRORS
        if answer.session_id == 0:
            # The broker keeps no session: its cache is full, or it does not support sessions.
            self._id, self._epoch, self._known = 0, 0, {}
            return True
        self._id = answer.session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        self._known = dict(self._requested)
        return True

    def lost(self) -> None:
        """End the session after a missing or wrong answer: the broker's state is unknown."""
        self._epoch, self._known = 0, {}
