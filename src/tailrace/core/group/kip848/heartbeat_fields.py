"""Content and schedule of KIP-848 heartbeats.

One heartbeat is in flight at a time. The next heartbeat follows an interval after the answer, or at once when a field
has changed, and carries only the fields that have changed. After a heartbeat that failed, it is uncertain which fields
the group knows. The next heartbeat then follows after a growing pause and carries every field.

The owned partitions in a heartbeat are ``unconfirmed`` until the heartbeat is answered. The group may assign any other
partition to another member, so the member takes over only ``unconfirmed`` partitions in the meantime.
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

__all__ = ["HeartbeatFields", "TopicIdPartitions"]

TopicIdPartitions: TypeAlias = frozenset[tuple[UUID, int]]
"""Partitions by topic id, because a recreated topic has another id and other records."""


class HeartbeatFields:
    """Fields that a member has reported to its group or has yet to report.

    Args:
        settings: settings of the membership.
        backoff: pauses after failures.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._settings, self._backoff, self._chance = settings, backoff, chance
        self.session = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self.sent: SendGroupHeartbeat | None = None
        """Heartbeat whose answer counts."""
        self.unconfirmed: TopicIdPartitions | None = None
        """Owned partitions of the heartbeat in flight; None if the group has acknowledged them."""
        self.is_known = False
        """True if the group may know this member."""
        self.is_held = False
        """True if the group may hold our instance id for this member.

        The group refuses a join with the instance id until the id is released.
        """
        self._is_doubtful = False
        """True if ``sent`` may have failed; its answer counts until the next heartbeat is sent."""
        self._next_at = 0.0
        self._topics = settings.topics
        self._reported_topics: frozenset[str] | None = None
        self._is_full = True
        """True if the next heartbeat carries every field."""
        self._reports_owned = False
        """True if the owned partitions have changed since they were reported."""
        self._failures = 0

    # ---- when --------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time at which the next heartbeat is due; None while a heartbeat is in flight."""
        return self._next_at if self.sent is None or self._is_doubtful else None

    def begin(self, now: float) -> None:
        """Schedule a heartbeat with every field for now."""
        self.sent, self._is_full, self._next_at = None, True, now

    def end(self) -> None:
        """Ignore the answer to the heartbeat in flight."""
        self.sent = None

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Report ``topics`` at once if they differ from the reported topics."""
        self._topics = topics
        if self._wanted != self._reported_topics:
            self._hasten(now)

    def owned_changed(self, now: float) -> None:
        """Report the owned partitions at once, because they have changed."""
        self._reports_owned = True
        self._hasten(now)

    def answered(self, interval_s: float, now: float) -> None:
        """Note that the heartbeat was acknowledged, and schedule the next heartbeat."""
        self.session.received(now)
        self.sent = self.unconfirmed = None
        self._is_full, self._failures = False, 0
        has_news = self._reports_owned or self._wanted != self._reported_topics
        self._next_at = now if has_news else now + interval_s

    def failed(self, now: float) -> None:
        """Schedule a heartbeat with every field after a pause, because a heartbeat or another request failed."""
        self._failures += 1
        self._is_doubtful = self._is_full = True
        self._next_at = now + self._backoff.pause_s(self._failures, self._chance())

    def hasten_after_error(self, now: float) -> None:
        """Schedule a heartbeat soon, because its answer may explain an error of another request."""
        if self.sent is not None:
            self.failed(now)
        elif not self._failures:
            self._next_at = min(self._next_at, now + self._backoff.pause_s(1, self._chance()))

    # ---- what --------------------------------------------------------------------------------------------------

    def next_heartbeat(self, identity: Identity, owned: TopicIdPartitions, now: float) -> SendGroupHeartbeat:
        """Return the heartbeat to send."""
        settings, is_full, topics = self._settings, self._is_full, self._wanted
        reports_owned = is_full or self._reports_owned
        self.sent = SendGroupHeartbeat(
            identity,
            self.session.session_timeout_s / 3,
            topics=topics if is_full or topics != self._reported_topics else None,
            pattern=settings.pattern if is_full else None,
            assignor=settings.remote_assignor if is_full else None,
            rebalance_timeout_s=settings.rebalance_timeout_s if is_full else None,
            rack=settings.rack if is_full else None,
            owned=_by_topic(owned) if reports_owned else None,
        )
        if reports_owned:
            self.unconfirmed = owned
        self._reported_topics, self.is_known, self.is_held = topics, True, True
        self._is_full = self._reports_owned = self._is_doubtful = False
        self.session.sent(now)
        return self.sent

    def release_instance(self, identity: Identity) -> SendGroupHeartbeat:
        """Return a heartbeat that releases our instance id."""
        self.sent = SendGroupHeartbeat(identity, self.session.session_timeout_s / 3)
        self._is_doubtful = False
        return self.sent

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> frozenset[str]:
        # The broker resolves the topics of a pattern.
        return self._topics if self._settings.pattern is None else frozenset()

    def _hasten(self, now: float) -> None:
        # After a failure the pause is kept, because the coordinator is not answering.
        if not self._failures:
            self._next_at = now


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> dict[UUID, tuple[int, ...]]:
    topics: dict[UUID, tuple[int, ...]] = {}
    for topic, partition in sorted(partitions):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics
