"""Content and schedule of KIP-848 heartbeats.

One heartbeat is in flight at a time. After its answer, the next heartbeat is due one interval later, or at once if a
field has changed, and contains only the changed fields. After a failed heartbeat, it is uncertain which fields the
group knows: the next heartbeat is due after a pause that grows with each failure, and contains every field.

The owned partitions in a heartbeat are ``unconfirmed`` until a heartbeat is answered. Until then, the member takes over
only partitions that are among them, because the group may assign any other partition to another member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import SendGroupHeartbeat
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.heartbeat import Heartbeat
from tailrace.core.group.membership import MemberSettings

__all__ = ["HeartbeatFields", "TopicIdPartitions"]

TopicIdPartitions: TypeAlias = frozenset[tuple[UUID, int]]
"""Pairs of a topic id and a partition number; a recreated topic has another id."""


class HeartbeatFields:
    """Fields that a member has reported to its group or has yet to report.

    Args:
        settings: settings of the membership.
        backoff: pauses after failed heartbeats.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._settings, self._backoff, self._chance = settings, backoff, chance
        self.session = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self.in_flight: SendGroupHeartbeat | None = None
        """Heartbeat whose answer is awaited; None if no answer is awaited."""
        self.unconfirmed: TopicIdPartitions | None = None
        """Owned partitions that were last sent in a heartbeat; None once a heartbeat is answered."""
        self.is_known = False
        """True if the group may contain this member, so that the member has to leave the group when it stops."""
        self.is_instance_held = False
        """True if the group may hold the instance id of this static member for its former membership.

        The group refuses a join with the instance id until a heartbeat has released the id.
        """
        self._may_have_failed = False
        """True if ``in_flight`` may have failed. Its answer is still accepted, until the next heartbeat is sent."""
        self._next_at = 0.0
        self._topics = settings.topics
        self._reported_topics: frozenset[str] | None = None
        """Topics in the last heartbeat; None before the first."""
        self._is_full = True
        """True if the next heartbeat contains every field."""
        self._reports_owned = False
        """True if the owned partitions have changed since the last heartbeat that contained them."""
        self._failures = 0

    # ---- schedule ----------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time at which the next heartbeat is due; None while a heartbeat is in flight that has not failed."""
        return self._next_at if self.in_flight is None or self._may_have_failed else None

    def restart(self, now: float) -> None:
        """Schedule a heartbeat with every field for ``now``, and ignore the answer to the heartbeat in flight."""
        self.in_flight, self._is_full, self._next_at = None, True, now

    def ignore_answer(self) -> None:
        """Ignore the answer to the heartbeat in flight."""
        self.in_flight = None

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Change the subscription, and schedule a heartbeat for ``now`` if the last heartbeat had other topics."""
        self._topics = topics
        if self._topics_to_report != self._reported_topics:
            self._hasten(now)

    def report_owned(self, now: float) -> None:
        """Schedule a heartbeat with the owned partitions, which have changed, for ``now``."""
        self._reports_owned = True
        self._hasten(now)

    def note_answer(self, interval_s: float, now: float) -> None:
        """Schedule the next heartbeat after ``interval_s``, or for ``now`` if a field has changed.

        The session begins at the time at which the answered heartbeat was sent.
        """
        self.session.note_answer(now)
        self.in_flight = self.unconfirmed = None
        self._is_full, self._failures = False, 0
        has_news = self._reports_owned or self._topics_to_report != self._reported_topics
        self._next_at = now if has_news else now + interval_s

    def note_failure(self, now: float) -> None:
        """Schedule a heartbeat with every field after a pause, because the heartbeat or another request failed."""
        self._failures += 1
        self._may_have_failed = self._is_full = True
        self._next_at = now + self._backoff.pause_s(self._failures, self._chance())

    def hasten_after_error(self, now: float) -> None:
        """Schedule a heartbeat soon after another request failed: the answer to the heartbeat may explain the error.

        A heartbeat in flight may have failed, too, so it is repeated after a pause.
        """
        if self.in_flight is not None:
            self.note_failure(now)
        elif not self._failures:
            self._next_at = min(self._next_at, now + self._backoff.pause_s(1, self._chance()))

    # ---- content -----------------------------------------------------------------------------------------------

    def next_heartbeat(self, identity: Identity, owned: TopicIdPartitions, now: float) -> SendGroupHeartbeat:
        """Return the heartbeat to send now, with the fields that the group may not know, and await its answer."""
        settings, is_full, topics = self._settings, self._is_full, self._topics_to_report
        reports_owned = is_full or self._reports_owned
        self.in_flight = SendGroupHeartbeat(
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
        self._reported_topics, self.is_known, self.is_instance_held = topics, True, True
        self._is_full = self._reports_owned = self._may_have_failed = False
        self.session.note_sent(now)
        return self.in_flight

    def release_instance(self, identity: Identity) -> SendGroupHeartbeat:
        """Return a heartbeat that releases the instance id of ``identity``, whose epoch is -2, and await its answer."""
        self.in_flight = SendGroupHeartbeat(identity, self.session.session_timeout_s / 3)
        self._may_have_failed = False
        return self.in_flight

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _topics_to_report(self) -> frozenset[str]:
        # The broker resolves the topics of a pattern.
        return self._topics if self._settings.pattern is None else frozenset()

    def _hasten(self, now: float) -> None:
        # After a failure the next heartbeat keeps its time, because the coordinator is not answering.
        if not self._failures:
            self._next_at = now


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> dict[UUID, tuple[int, ...]]:
    topics: dict[UUID, tuple[int, ...]] = {}
    for topic, partition in sorted(partitions):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics
