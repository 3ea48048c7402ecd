"""Heartbeats under KIP-848: when the next goes out, and what it says.

One is in flight at a time. The next follows an interval after the answer, or at once when there is something to say,
and says only what the group does not know yet. After one that failed, nobody can tell what the group knows: the next
follows after a pause that grows and says everything.

What was said to be owned stays ``unconfirmed`` until an answer is here. A group that reads it may give away whatever
it does not name, so nothing else may become ours meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import SendGroupHeartbeat
from tailrace.core.group.events import Identity
from tailrace.core.group.heartbeat import Heartbeat
from tailrace.core.group.membership import MemberSettings

__all__ = ["HeartbeatFields", "Places"]

Places: TypeAlias = frozenset[tuple[UUID, int]]
"""Partitions by topic id: a topic that was deleted and made again has another, and other records."""


class HeartbeatFields:
    """What one member has told its group, and has to tell it.

    Args:
        settings: what the options say.
        backoff: the pauses after failures.
        chance: gives a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._settings, self._backoff, self._chance = settings, backoff, chance
        self.session = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self.sent: SendGroupHeartbeat | None = None
        """The one whose answer counts."""
        self.unconfirmed: Places | None = None
        """What was said to be owned, while no answer has shown that the group knows."""
        self.is_known = False
        """Whether the group may count us."""
        self.is_held = False
        """Whether it may have given our instance id to us, and gives it to nobody before that is said to be free."""
        self._is_doubtful = False
        """Whether ``sent`` may have failed; its answer counts until the next one goes out."""
        self._next_at = 0.0
        self._topics = settings.topics
        self._said_topics: frozenset[str] | None = None
        self._says_all = True
        self._says_owned = False
        self._failures = 0

    # ---- when --------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """When the next one is due; None while the last is in flight."""
        return self._next_at if self.sent is None or self._is_doubtful else None

    def begin(self, now: float) -> None:
        """Say everything, at once."""
        self.sent, self._says_all, self._next_at = None, True, now

    def end(self) -> None:
        """No answer counts any more."""
        self.sent = None

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Other topics are wanted: say so at once."""
        self._topics = topics
        if self._wanted != self._said_topics:
            self._hasten(now)

    def owned_changed(self, now: float) -> None:
        """Something was given back or taken over: say so at once."""
        self._says_owned = True
        self._hasten(now)

    def answered(self, interval_s: float, now: float) -> None:
        """The group knows that we live, and what was said."""
        self.session.received(now)
        self.sent = self.unconfirmed = None
        self._says_all, self._failures = False, 0
        has_news = self._says_owned or self._wanted != self._said_topics
        self._next_at = now if has_news else now + interval_s

    def failed(self, now: float) -> None:
        """The one that is in flight was not answered, or perhaps another request was not."""
        self._failures += 1
        self._is_doubtful = self._says_all = True
        self._next_at = now + self._backoff.pause_s(self._failures, self._chance())

    def wanted_soon(self, now: float) -> None:
        """Something is amiss that the next answer may tell."""
        if self.sent is not None:
            self.failed(now)
        elif not self._failures:
            self._next_at = min(self._next_at, now + self._backoff.pause_s(1, self._chance()))

    # ---- what --------------------------------------------------------------------------------------------------

    def speak(self, identity: Identity, owned: Places, now: float) -> SendGroupHeartbeat:
        """The next one, as it goes out."""
        settings, says_all, topics = self._settings, self._says_all, self._wanted
        says_owned = says_all or self._says_owned
        self.sent = SendGroupHeartbeat(
            identity,
            self.session.session_timeout_s / 3,
            topics=topics if says_all or topics != self._said_topics else None,
            pattern=settings.pattern if says_all else None,
            assignor=settings.remote_assignor if says_all else None,
            rebalance_timeout_s=settings.rebalance_timeout_s if says_all else None,
            rack=settings.rack if says_all else None,
            owned=_by_topic(owned) if says_owned else None,
        )
        if says_owned:
            self.unconfirmed = owned
        self._said_topics, self.is_known, self.is_held = topics, True, True
        self._says_all = self._says_owned = self._is_doubtful = False
        self.session.sent(now)
        return self.sent

    def let_go(self, identity: Identity) -> SendGroupHeartbeat:
        """Say instead that our instance id is free."""
        self.sent = SendGroupHeartbeat(identity, self.session.session_timeout_s / 3)
        self._is_doubtful = False
        return self.sent

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> frozenset[str]:
        # The broker finds the topics of a pattern.
        return self._topics if self._settings.pattern is None else frozenset()

    def _hasten(self, now: float) -> None:
        # A pause after a failure is kept: there is nobody who would listen.
        if not self._failures:
            self._next_at = now


def _by_topic(places: Iterable[tuple[UUID, int]]) -> dict[UUID, tuple[int, ...]]:
    topics: dict[UUID, tuple[int, ...]] = {}
    for topic, partition in sorted(places):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics
