"""Incremental fetch sessions (KIP-227): a broker remembers what we fetch, so a request names only what changed.

One session per broker. A request is full (session epoch 0, everything named) or incremental. Whatever goes wrong
with a session ends it, and the next request is full again.
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
    """What a fetch request says of its session."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[ForgottenPartition, ...]


def without_session(wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
    """Return a request of which the broker remembers nothing, and which changes no session."""
    return SessionPart(0, _NO_SESSION_EPOCH, tuple(wanted.values()), ())


class FetchSession:
    """Our side of one broker's session."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, FetchPartition] = {}
        """What the broker remembers, as far as we know."""
        self._asked: Mapping[TopicPartition, FetchPartition] = {}

    @property
    def is_full(self) -> bool:
        """Whether the next request names everything."""
        return self._epoch == 0

    def knows(self, partition: TopicPartition) -> bool:
        """Whether the broker remembers a partition, so that it tells no more of it than what is new."""
        return partition in self._known

    def ask(self, wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
        """The next request, to fetch ``wanted`` and nothing else, in that order."""
        if any(key in self._known and self._known[key].topic_id != one.topic_id for key, one in wanted.items()):
            # A topic was made anew. A broker that goes by names would forget the new one with the old.
            self.lost()
        self._asked = dict(wanted)
        if self.is_full:
            # An old id with epoch 0 ends that session and begins another.
            return SessionPart(self._id, 0, tuple(wanted.values()), ())
        changed = tuple(one for key, one in wanted.items() if self._known.get(key) != one)
        forgotten = tuple(
            ForgottenPartition(one.partition, one.topic, one.topic_id)
            for key, one in self._known.items()
            if key not in wanted
        )
        return SessionPart(self._id, self._epoch, changed, forgotten)

    def answered(self, answer: FetchResponse) -> bool:
        """Take the answer in; False when the session is over and the answer holds nothing."""
        if answer.error_code:
            self.lost()
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            return answer.error_code not in _SESSION_ERRORS
        if answer.session_id == 0:
            # The broker keeps no session of ours: it has no room, or does not know how.
            self._id, self._epoch, self._known = 0, 0, {}
            return True
        self._id = answer.session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        self._known = dict(self._asked)
        return True

    def lost(self) -> None:
        """No answer came, or a wrong one: nobody knows what the broker remembers."""
        self._epoch, self._known = 0, {}
