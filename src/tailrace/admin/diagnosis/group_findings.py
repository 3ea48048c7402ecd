"""Findings about a group: members, assignment, lag, stalled members, and records deleted before they are read.

Pure: no clock, IO or logging.

A look is one reading of the group's state. Progress is judged from two looks: a member that owns partitions with a lag,
and has committed nothing between the looks, is stalled, or slower than the interval between them. A commit counts even
if only its metadata has changed, because the metadata of tailrace lists records finished after the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.admin.diagnosis.findings import (
    CommandLines,
    Finding,
    GroupNeeds,
    Level,
    Subject,
    counted,
    duration,
    named,
)
from tailrace.admin.diagnosis.permissions import permission_findings
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED
from tailrace.records import TopicPartition

__all__ = ["OLD", "VERY_OLD", "Commit", "GroupFacts", "MemberFacts", "PartitionFacts", "group_findings"]

OLD, VERY_OLD = 0.5, 0.9
"""Shares of retention.ms: an unread record older than ``OLD`` is a warning, older than ``VERY_OLD`` a problem."""

_MOST_OF_LOG = 0.8
"""Share of a log above which the lag is a warning, if the size of the log is limited."""
_SETTLED = {"Stable"}
_REBALANCING = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
_SHORT_OFFSETS_RETENTION_MS = 86_400_000
"""Retention of committed offsets below which there is a warning: one day."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Committed offset of a partition at one look."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """State of one partition of a group's topics at the first look, and at the second if there was one."""

    partition: TopicPartition
    committed: Commit | None
    """Committed offset at the first look; None if there was none."""
    begin: int | None
    """First offset of the log at the last look; None if unknown."""
    end: int | None
    """End offset of the log at the first look; None if unknown."""
    later_committed: Commit | None = None
    """Committed offset at the last look; None if there was none."""
    later_end: int | None = None
    """End offset of the log at the last look; None if unknown."""
    owner: str = ""
    """Member id of the owner at the last look; empty if there is none."""
    has_same_owner: bool = True
    """False if the owner changed between the looks."""
    age: float = 0.0
    """``OLD`` or ``VERY_OLD`` if the oldest unread record is older than this share of retention.ms, otherwise 0."""
    retention_ms: int = -1
    retention_bytes: int = -1

    @property
    def lag(self) -> int:
        end = self.end if self.later_end is None else self.later_end
        committed = self.later_committed or self.committed
        return 0 if committed is None or end is None else max(0, end - committed.offset)

    @property
    def lost(self) -> int:
        """Number of offsets of the lag that are no longer in the log, at the last look."""
        committed = self.later_committed or self.committed
        return 0 if committed is None or self.begin is None else max(0, self.begin - committed.offset)

    @property
    def is_waiting(self) -> bool:
        """True if the group had records to read at the first look."""
        if self.end is None or self.begin is None:
            return False
        return self.end > (self.begin if self.committed is None else self.committed.offset)

    @property
    def growth(self) -> int:
        """Number of offsets appended between the looks."""
        return 0 if self.end is None or self.later_end is None else max(0, self.later_end - self.end)

    @property
    def has_progress(self) -> bool:
        """True if the committed offset or its metadata has changed between the looks."""
        return self.later_committed != self.committed

    @property
    def is_held_back(self) -> bool:
        """True if later records were finished between the looks, but not the record at the committed offset."""
        first, second = self.committed, self.later_committed
        return first is not None and second is not None and first != second and first.offset == second.offset


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """Member of a group."""

    member_id: str
    name: str
    """Description for users: client id, ``group_instance_id`` if there is one, and host."""
    topics: tuple[str, ...] = ()
    """Subscribed topics."""
    partitions: int = 0
    """Number of assigned partitions."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """State of one group."""

    group_id: str
    is_missing: bool = False
    is_forbidden: bool = False
    """True if the principal may not describe the group."""
    similar: str = ""
    """Existing group with a similar name; empty if there is none."""
    failure: str = ""
    """Reason why the group was not checked."""
    operations: int = OPERATIONS_NOT_REQUESTED
    """Bit field of the operations that the principal may perform on the group."""
    group_type: str = ""
    """Protocol of the members: ``classic`` or ``consumer``; empty if unknown."""
    protocol_type: str = "consumer"
    state: str = ""
    """State at the first look, as the coordinator names it."""
    later_state: str = ""
    """State at the second look; empty without one."""
    assignor: str = ""
    coordinator_id: int = -1
    members: Sequence[MemberFacts] = ()
    partitions: Sequence[PartitionFacts] = ()
    interval_ms: float = 0.0
    """Milliseconds between the looks; 0 without a second look."""
    offsets_retention_ms: int | None = None
    """Milliseconds after which the offsets of a group without members are deleted; None if unknown."""
    has_pattern: bool = False
    """True if a member subscribes to a pattern."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Reasons why parts of the group were not checked, by the name of the part."""

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.partitions)


def group_findings(facts: GroupFacts, need: GroupNeeds, commands: CommandLines) -> Iterator[Finding]:
    subject = Subject(f"group {facts.group_id}")
    show = commands.tailrace("groups", "show", facts.group_id)
    yield from permission_findings("group", facts.group_id, facts.operations, ("Read",), commands)
    if facts.is_forbidden:
        yield subject.problem(
            "group.permission",
            f"{commands.principal} is not authorized to Describe this group, so nothing else was checked",
            "grant Read, which includes Describe",
            commands.allow("Read", "group", facts.group_id),
        )
        return
    if facts.failure:
        yield subject.problem("group.unknown", f"not checked: {facts.failure}", "try again", show)
        return
    if facts.is_missing:
        yield _missing_finding(facts, need, subject, commands)
        return
    if facts.protocol_type not in {"consumer", ""}:
        yield subject.problem(
            "group.type",
            f"has protocol type {facts.protocol_type!r}: a consumer cannot join it",
            "choose another group_id",
            commands.tailrace("groups", "list"),
        )
        return
    found = [
        *_state_findings(facts, need, subject, commands),
        *_assignment_findings(facts, need, subject, commands),
        *_deletion_findings(facts, subject, commands),
        *_progress_findings(facts, subject, commands),
        *_offsets_retention_findings(facts, subject, commands),
    ]
    yield _summary_finding(facts, subject)
    yield from found
    for part, reason in facts.problems.items():
        yield subject.skipped("group.partial", f"{part} not checked: {reason}")


def _missing_finding(facts: GroupFacts, need: GroupNeeds, subject: Subject, commands: CommandLines) -> Finding:
    if need.is_of_app:
        return subject.ok(
            "group.missing",
            "does not exist yet, or its offsets have expired; the app creates it when it starts",
        )
    return subject.problem(
        "group.missing",
        "does not exist, or its offsets have expired" + (f"; {facts.similar} exists" if facts.similar else ""),
        f"check {facts.similar}, or correct the name" if facts.similar else "correct the name",
        commands.tailrace("groups", "list"),
    )


def _summary_finding(facts: GroupFacts, subject: Subject) -> Finding:
    idle = sum(not one.partitions for one in facts.members)
    members = counted(len(facts.members), "member") + (f", {idle} of them without partitions" if idle else "")
    protocol = {"consumer": "protocol consumer (KIP-848)"}.get(facts.group_type, "classic protocol")
    assignor = f", {facts.assignor}" if facts.assignor else ""
    uncommitted = sum(one.committed is None for one in facts.partitions)
    without = f", {uncommitted:,} of them without a committed offset" if uncommitted else ""
    return subject.ok(
        "group",
        f"{facts.later_state or facts.state}, {protocol}{assignor}; {members}; lag {facts.lag:,} in"
        f" {counted(len(facts.partitions), 'partition')}{without}",
    )


def _state_findings(facts: GroupFacts, need: GroupNeeds, subject: Subject, commands: CommandLines) -> Iterator[Finding]:
    if not facts.members:
        expiry = (
            f"; its offsets are deleted {duration(facts.offsets_retention_ms)} after the last member left"
            " (offsets.retention.minutes), and auto_offset_reset then decides where it starts"
            if facts.offsets_retention_ms is not None
            else ""
        )
        yield subject.warning(
            "group.empty",
            f"has no members, so nothing reads its lag of {facts.lag:,}{expiry}",
            "start the app",
            need.start or commands.tailrace("lag", facts.group_id, "--watch"),
        )
    elif facts.state in _REBALANCING and facts.later_state in _REBALANCING:
        yield subject.warning(
            "group.rebalancing",
            f"was {facts.state}, and {duration(facts.interval_ms)} later {facts.later_state}: the rebalance waits for a"
            " member that neither joins nor leaves",
            "look in the log of each member for the reason why it does not join",
            commands.tailrace("groups", "show", facts.group_id),
        )
    if not need.is_of_app or not facts.members:
        return
    if facts.group_type == "classic" and need.group_protocol == "classic" and facts.assignor:
        if facts.assignor not in need.strategies:
            yield subject.problem(
                "group.assignor",
                f"its members use the assignor {facts.assignor!r}, the app has {named(need.strategies)}: the app cannot"
                " join unless every member supports one of the app's assignors",
                f"add {facts.assignor!r} to the app's partition_assignment_strategy until every member supports"
                " another one",
                commands.tailrace("groups", "show", facts.group_id),
            )
    elif facts.group_type == "classic" and need.group_protocol == "consumer":
        yield subject.warning(
            "group.protocol",
            "its members use the classic protocol, the app has group_protocol='consumer': the group is converted when"
            " the app joins, if the brokers' group.consumer.migration.policy permits it",
            "check that policy before the app starts",
            commands.kafka("kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-default"),
        )


def _assignment_findings(
    facts: GroupFacts, need: GroupNeeds, subject: Subject, commands: CommandLines
) -> Iterator[Finding]:
    if not facts.members:
        return
    show = commands.tailrace("groups", "show", facts.group_id)
    subscribed = {topic for member in facts.members for topic in member.topics}
    unassigned = [one.partition for one in facts.partitions if one.partition.topic in subscribed and not one.owner]
    if unassigned and facts.state in _SETTLED and (facts.later_state or facts.state) in _SETTLED:
        yield subject.problem(
            "group.unassigned",
            f"is {facts.state}, but no member owns {counted(len(unassigned), 'partition')} of the subscribed topics:"
            f" {named(unassigned)}",
            "restart a member, so that the group rebalances; if that does not help, check the assignor",
            show,
        )
    if need.topics and not facts.has_pattern and (missing := sorted(need.topics - subscribed)):
        yield subject.warning(
            "group.subscription",
            f"no member subscribes to {named(missing)}, which the app reads; the members subscribe to"
            f" {named(sorted(subscribed)) or 'nothing'}",
            "deploy the current version of the app, or give this app a group of its own",
            show,
        )


def _deletion_findings(facts: GroupFacts, subject: Subject, commands: CommandLines) -> Iterator[Finding]:
    lost = [one for one in facts.partitions if one.lost]
    if lost:
        yield subject.problem(
            "group.lost",
            f"the log no longer contains {counted(sum(one.lost for one in lost), 'record')} of"
            f" {named([one.partition for one in lost])} that the group had not read",
            "raise the retention of these topics, or add members",
            commands.set_topic(lost[0].partition.topic, f"retention.ms={max(lost[0].retention_ms, 302_400_000) * 2}"),
        )
    for share, level in ((VERY_OLD, Level.PROBLEM), (OLD, Level.WARNING)):
        aged = [one for one in facts.partitions if one.age == share and not one.lost]
        if aged:
            worst = max(aged, key=lambda one: one.lag)
            left = worst.retention_ms * (1 - share)
            yield subject.finding(
                level,
                "group.retention",
                f"the oldest unread record of {named([one.partition for one in aged])} is older than {share:.0%} of"
                f" retention.ms={worst.retention_ms} ({duration(worst.retention_ms)}): it may be deleted unread in less"
                f" than {duration(left)} (lag {sum(one.lag for one in aged):,})",
                "raise the retention until the lag is read",
                commands.set_topic(worst.partition.topic, f"retention.ms={worst.retention_ms * 2}"),
            )
    sized = [
        one
        for one in facts.partitions
        if one.retention_bytes > 0 and not one.lost and one.begin is not None and one.end is not None
        if one.lag > _MOST_OF_LOG * (one.end - one.begin) > 0 and one.begin > 0
    ]
    if sized:
        yield subject.warning(
            "group.retention-bytes",
            f"unread records are more than {_MOST_OF_LOG:.0%} of the log of {named([one.partition for one in sized])},"
            f" and retention.bytes={sized[0].retention_bytes} deletes the oldest first",
            "raise retention.bytes, or add members",
            commands.set_topic(sized[0].partition.topic, f"retention.bytes={sized[0].retention_bytes * 2}"),
        )


def _progress_findings(facts: GroupFacts, subject: Subject, commands: CommandLines) -> Iterator[Finding]:
    if not facts.interval_ms:
        return
    interval = duration(facts.interval_ms)
    owned: dict[str, list[PartitionFacts]] = {}
    for one in facts.partitions:
        if one.owner and one.has_same_owner:
            owned.setdefault(one.owner, []).append(one)
    for member in facts.members:
        waiting = [one for one in owned.get(member.member_id, ()) if one.is_waiting]
        if not waiting or any(one.has_progress for one in owned[member.member_id]):
            continue
        growth, lag = sum(one.growth for one in waiting), sum(one.lag for one in waiting)
        change = f"grew by {growth:,}" if growth else "did not change"
        yield subject.finding(
            Level.PROBLEM if growth else Level.WARNING,
            "group.stalled",
            f"{member.name} committed nothing in {interval} for {named([one.partition for one in waiting])}; its lag of"
            f" {lag:,} {change}",
            "look at the member's log and health; restart it if it hangs",
            commands.tailrace("lag", facts.group_id, "--watch"),
        )
    if held := [one for one in facts.partitions if one.is_held_back and one.committed is not None]:
        first = held[0]
        offset = 0 if first.committed is None else first.committed.offset
        yield subject.warning(
            "group.held-back",
            f"later records of {named([one.partition for one in held])} were finished in {interval}, but the committed"
            f" offset waits for an earlier record: offset {offset} of {first.partition}",
            "look at the record that is not finished",
            commands.tailrace(
                "tail", first.partition.topic, "--partition", str(first.partition.partition), "--from", str(offset),
                "--max", "1",
            ),
        )  # fmt: skip


def _offsets_retention_findings(facts: GroupFacts, subject: Subject, commands: CommandLines) -> Iterator[Finding]:
    kept = facts.offsets_retention_ms
    if kept is not None and facts.members and kept < _SHORT_OFFSETS_RETENTION_MS:
        yield subject.warning(
            "group.offsets-retention",
            f"offsets.retention.minutes={kept // 60_000}: after {duration(kept)} without members its committed offsets"
            " are deleted, and auto_offset_reset decides where it starts",
            "set offsets.retention.minutes=10080 on the brokers",
            commands.kafka(
                "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name",
                str(facts.coordinator_id),
            ),
        )  # fmt: skip
