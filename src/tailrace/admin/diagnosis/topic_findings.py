"""Findings about topics: replicas, settings, permissions, and the topics of an app. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from tailrace.admin.diagnosis.findings import (
    CommandLines,
    Finding,
    Level,
    Subject,
    TopicNeeds,
    TopicRole,
    counted,
    duration,
    named,
)
from tailrace.admin.diagnosis.permissions import permission_findings
from tailrace.error_codes import ErrorCode, name_of
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED, TopicMetadata

__all__ = ["SETTINGS", "TopicFacts", "TopicsFacts", "topic_findings"]

SETTINGS = (
    "cleanup.policy",
    "max.message.bytes",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
)
"""Topic settings that the checks need."""

_HEADERS_BYTES = 16_384
"""Space for the headers of a dead letter with a long traceback."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """State of one topic."""

    name: str
    error_code: int = 0
    """Error code of the Metadata response for the topic."""
    is_internal: bool = False
    partitions: int = 0
    """Number of partitions."""
    replication_factor: int = 0
    """Smallest number of replicas of a partition."""
    smallest_isr: int = 0
    """Smallest number of in-sync replicas of a partition that has a leader."""
    leaderless: tuple[int, ...] = ()
    """Partitions without a leader."""
    under_replicated: tuple[int, ...] = ()
    """Partitions with a leader and fewer in-sync replicas than replicas."""
    out_of_sync: frozenset[int] = frozenset()
    """Brokers whose replica of a partition is not in sync."""
    operations: int = OPERATIONS_NOT_REQUESTED
    """Bit field of the operations that the principal may perform on the topic."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of ``SETTINGS``; empty if unknown."""
    no_settings: str = ""
    """Reason why the settings are unknown."""
    records: int | None = None
    """Number of offsets in the logs of all partitions; None if not counted."""

    @classmethod
    def of(cls, topic: TopicMetadata) -> TopicFacts:
        with_leader = [one for one in topic.partitions if one.leader_id >= 0]
        short = [one for one in with_leader if len(one.isr) < len(one.replicas)]
        return cls(
            topic.name or "",
            topic.error_code,
            topic.is_internal,
            len(topic.partitions),
            min((len(one.replicas) for one in topic.partitions), default=0),
            min((len(one.isr) for one in with_leader), default=0),
            tuple(sorted(one.partition for one in topic.partitions if one.leader_id < 0)),
            tuple(sorted(one.partition for one in short)),
            frozenset(node for one in short for node in set(one.replicas) - set(one.isr)),
            topic.authorized_operations,
        )

    def number(self, setting: str, default: int = -1) -> int:
        """Return the value of a numeric setting, or ``default`` if it is unknown."""
        value = self.settings.get(setting, "")
        return int(value) if value.removeprefix("-").isdecimal() else default

    @property
    def is_compacted(self) -> bool:
        """True if cleanup.policy includes "compact": a record is removed when a later record has the same key."""
        return "compact" in self.settings.get("cleanup.policy", "")

    @property
    def is_deleted_by_age(self) -> bool:
        """True if cleanup.policy includes "delete": records are deleted by age or by the size of the log."""
        return "delete" in self.settings.get("cleanup.policy", "delete")


@dataclass(frozen=True, slots=True)
class TopicsFacts:
    """Topics of a cluster."""

    checked: Sequence[TopicFacts]
    """Topics to check one by one."""
    unhealthy: Sequence[TopicFacts] = ()
    """Other topics that have a partition without a leader or with a replica that is not in sync."""
    names: Collection[str] = ()
    """Names of all topics that the principal may describe."""
    brokers: int = 1
    """Number of brokers of the cluster."""
    may_create: bool | None = None
    """True if the principal may create topics; None if unknown."""


def topic_findings(facts: TopicsFacts, needs: Mapping[str, TopicNeeds], commands: CommandLines) -> Iterator[Finding]:
    """Yield the findings about topics; one finding lists all checked topics that have no warning or problem."""
    by_name = {topic.name: topic for topic in facts.checked}
    sound: list[TopicFacts] = []
    unknown: dict[str, list[str]] = {}
    for topic in facts.checked:
        need = needs.get(topic.name, TopicNeeds(topic.name))
        found = list(_topic_findings(topic, need, facts, by_name, commands))
        yield from found
        if topic.no_settings:
            unknown.setdefault(topic.no_settings, []).append(topic.name)
        if topic.partitions and all(finding.level is Level.OK for finding in found):
            sound.append(topic)
    for reason, names in unknown.items():
        yield Subject("topic settings").skipped(
            "topic.settings",
            f"{named(names)}: retention, min.insync.replicas and other settings not checked: {reason}",
            "grant DescribeConfigs",
            commands.allow("DescribeConfigs", "topic", names[0]),
        )
    if sound:
        yield Subject("topics").ok("topic", _summary(sound))
    if facts.unhealthy:
        yield _others_finding(facts.unhealthy, commands)


def _others_finding(topics: Sequence[TopicFacts], commands: CommandLines) -> Finding:
    leaderless, short = sum(len(one.leaderless) for one in topics), sum(len(one.under_replicated) for one in topics)
    counts = [(leaderless, "without a leader"), (short, "under-replicated")]
    found = " and ".join(f"{counted(number, 'partition')} {how}" for number, how in counts if number)
    return Subject("other topics").warning(
        "topic.others",
        f"{found} in {named([one.name for one in topics])}",
        "start the brokers that are down",
        commands.kafka("kafka-topics", "--describe", "--under-replicated-partitions"),
    )


def _summary(sound: Sequence[TopicFacts]) -> str:
    partitions = sum(one.partitions for one in sound)
    factors = sorted({one.replication_factor for one in sound})
    factor = f"{factors[0]}" if len(factors) == 1 else f"{factors[0]} to {factors[-1]}"
    return (
        f"{named([one.name for one in sound], 3)}: {counted(partitions, 'partition')}, all with a leader and all"
        f" replicas in sync, replication factor {factor}"
    )


def _topic_findings(
    topic: TopicFacts, need: TopicNeeds, facts: TopicsFacts, by_name: Mapping[str, TopicFacts], commands: CommandLines
) -> Iterator[Finding]:
    subject = Subject(f"topic {topic.name}")
    if topic.error_code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
        yield from _missing_findings(topic, need, facts, by_name, commands)
        return
    if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        yield subject.problem(
            "topic.permission",
            f"{commands.principal} is not authorized to Describe this topic, so nothing else was checked",
            f"grant {' and '.join(need.operations) or 'Read'}, which include Describe",
            commands.allow((need.operations or ("Read",))[0], "topic", topic.name),
        )
        return
    if topic.error_code and not topic.partitions:
        yield subject.problem(
            "topic.error",
            f"the brokers report {name_of(topic.error_code)}",
            "look at the brokers' logs",
            commands.kafka("kafka-topics", "--describe", "--topic", topic.name),
        )
        return
    yield from _replica_findings(topic, subject, commands)
    if topic.settings and not topic.is_internal:
        yield from _durability_findings(topic, facts, subject, commands)
    if topic.settings:
        yield from _role_findings(topic, need, by_name, subject, commands)
    yield from permission_findings("topic", topic.name, topic.operations, need.operations, commands)


def _missing_findings(
    topic: TopicFacts, need: TopicNeeds, facts: TopicsFacts, by_name: Mapping[str, TopicFacts], commands: CommandLines
) -> Iterator[Finding]:
    subject = Subject(f"topic {topic.name}")
    origins = [by_name[name] for name in sorted(need.origins) if name in by_name and by_name[name].partitions]
    delays = TopicRole.PUBLISH_DELAY in need.roles
    partitions = max((origin.partitions for origin in origins), default=1 if delays else 3)
    create = commands.kafka(
        "kafka-topics", "--create", "--topic", topic.name, "--partitions", str(partitions), "--replication-factor",
        str(max((origin.replication_factor for origin in origins), default=min(3, facts.brokers))),
    )  # fmt: skip
    if need.is_own and not origins and not delays:
        return  # another finding reports that the origin is missing
    if need.is_own and facts.may_create is not False:
        yield subject.ok(
            "topic.own-missing",
            f"does not exist yet; the app creates it with {counted(partitions, 'partition')} when it starts",
        )
    elif need.is_own:
        is_required = delays or TopicRole.RETRY in need.roles
        like = f", like {named(sorted(need.origins))}" if need.origins else ""
        consequence = "the app does not start" if is_required else "records that fail for good cannot be stored"
        yield subject.finding(
            Level.PROBLEM if is_required else Level.WARNING,
            "topic.own-missing",
            f"does not exist, and {commands.principal} is not authorized to Create topics in the cluster: unless an ACL"
            f" for this name permits it, {consequence}",
            f"create it with {counted(partitions, 'partition')}{like}, or grant Create",
            create,
        )
    else:
        close = get_close_matches(topic.name, facts.names, n=1)
        yield subject.problem(
            "topic.missing",
            f"does not exist, but {close[0]} exists" if close else "does not exist",
            f"use {close[0]}, or create the topic" if close else "create the topic, or correct its name",
            create,
        )


def _replica_findings(topic: TopicFacts, subject: Subject, commands: CommandLines) -> Iterator[Finding]:
    minimum = topic.number("min.insync.replicas", 0)
    if topic.leaderless:
        yield subject.problem(
            "topic.leaderless",
            f"has no leader for {len(topic.leaderless):,} of {counted(topic.partitions, 'partition')}"
            f" ({named(topic.leaderless)}), which cannot be read or written",
            "start the brokers that have their replicas",
            commands.kafka("kafka-topics", "--describe", "--topic", topic.name, "--unavailable-partitions"),
        )
    if topic.under_replicated:
        below = topic.smallest_isr < minimum
        consequence = (
            f"a partition has {counted(topic.smallest_isr, 'replica')} in sync, below min.insync.replicas={minimum}:"
            " writes with acks=all are refused"
            if below
            else f"each has at least {topic.smallest_isr} of {topic.replication_factor} replicas in sync"
        )
        yield subject.finding(
            Level.PROBLEM if below else Level.WARNING,
            "topic.under-min-isr" if below else "topic.under-replicated",
            f"{len(topic.under_replicated):,} of {counted(topic.partitions, 'partition')} under-replicated"
            f" ({named(topic.under_replicated)}), not in sync on broker {named(sorted(topic.out_of_sync))};"
            f" {consequence}",
            "start these brokers, or wait until they have caught up",
            commands.kafka("kafka-topics", "--describe", "--topic", topic.name, "--under-replicated-partitions"),
        )


def _durability_findings(
    topic: TopicFacts, facts: TopicsFacts, subject: Subject, commands: CommandLines
) -> Iterator[Finding]:
    minimum, replicas = topic.number("min.insync.replicas", 1), topic.replication_factor
    if minimum > replicas:
        yield subject.problem(
            "topic.min-isr",
            f"min.insync.replicas={minimum} is above its replication factor {replicas}: every write with acks=all is"
            " refused (NOT_ENOUGH_REPLICAS)",
            f"set min.insync.replicas to {max(replicas - 1, 1)}, or add replicas",
            commands.set_topic(topic.name, f"min.insync.replicas={max(replicas - 1, 1)}"),
        )
    elif replicas == 1 and facts.brokers > 1:
        yield subject.warning(
            "topic.single-replica",
            f"replication factor 1 in a cluster of {facts.brokers} brokers: while a broker is down, its partitions"
            " cannot be read or written",
            "add replicas",
            commands.kafka("kafka-reassign-partitions", "--reassignment-json-file", "plan.json", "--execute"),
        )
    elif minimum == replicas > 1:
        yield subject.warning(
            "topic.min-isr-equal",
            f"min.insync.replicas={minimum} equals its replication factor: while one broker restarts, writes with"
            " acks=all are refused",
            f"set min.insync.replicas={replicas - 1}",
            commands.set_topic(topic.name, f"min.insync.replicas={replicas - 1}"),
        )
    elif minimum == 1 and replicas > 1:
        yield subject.warning(
            "topic.min-isr-low",
            f"min.insync.replicas=1 with {replicas} replicas: a record may be acknowledged by one broker and lost with"
            " it",
            "set min.insync.replicas=2",
            commands.set_topic(topic.name, "min.insync.replicas=2"),
        )
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield subject.warning(
            "topic.unclean-election",
            "unclean.leader.election.enable=true: acknowledged records are lost if a replica that is not in sync"
            " becomes leader",
            "set unclean.leader.election.enable=false",
            commands.set_topic(topic.name, "unclean.leader.election.enable=false"),
        )


def _role_findings(
    topic: TopicFacts, need: TopicNeeds, by_name: Mapping[str, TopicFacts], subject: Subject, commands: CommandLines
) -> Iterator[Finding]:
    retention = topic.number("retention.ms")
    if topic.is_compacted and (roles := need.roles - {TopicRole.READ}):
        own = any(role.is_own for role in roles)
        effect = (
            "of records with equal keys, only the last is kept, and records without a key are refused"
            if own
            else "results without a key are refused"
        )
        yield subject.finding(
            Level.PROBLEM if own else Level.WARNING,
            "topic.compacted",
            f"cleanup.policy={topic.settings['cleanup.policy']}: {effect}",
            "set cleanup.policy=delete" if own else "publish every result with a key, or set cleanup.policy=delete",
            commands.set_topic(topic.name, "cleanup.policy=delete"),
        )
    if TopicRole.RETRY in need.roles and topic.is_deleted_by_age and 0 <= retention < 2 * need.delay_ms:
        yield subject.problem(
            "topic.retry-retention",
            f"retention.ms={retention} ({duration(retention)}) for a delay of {duration(need.delay_ms)}: records may be"
            " deleted before they are retried",
            f"set a retention of more than {duration(2 * need.delay_ms)}",
            commands.set_topic(topic.name, f"retention.ms={max(604_800_000, 10 * need.delay_ms)}"),
        )
    least_ms = need.delay_ms + min(need.delay_ms, 604_800_000)
    if TopicRole.PUBLISH_DELAY in need.roles and topic.is_deleted_by_age and 0 <= retention < least_ms:
        yield subject.problem(
            "topic.delay-retention",
            f"retention.ms={retention} ({duration(retention)}) for a delay of {duration(need.delay_ms)}: messages may"
            " be deleted before they are published",
            "set a retention of seven days more than the delay, as for the topics that tailrace creates",
            commands.set_topic(topic.name, f"retention.ms={need.delay_ms + 604_800_000}"),
        )
    if TopicRole.DEAD_LETTER in need.roles and topic.is_deleted_by_age and retention >= 0:
        yield subject.warning(
            "topic.dead-letter-retention",
            f"retention.ms={retention}: dead letters are deleted after {duration(retention)}, even if not replayed",
            "set retention.ms=-1, as for the dead-letter topics that tailrace creates",
            commands.set_topic(topic.name, "retention.ms=-1"),
        )
    if need.is_own and TopicRole.PUBLISH_DELAY not in need.roles:
        origins = [by_name[name] for name in sorted(need.origins) if name in by_name]
        yield from _size_findings(topic, origins, subject, commands, is_read="Read" in need.operations)
    if TopicRole.DEAD_LETTER in need.roles and topic.records:
        yield subject.ok(
            "topic.dead-letters",
            f"holds {counted(topic.records, 'record')}: dead letters, and marks of those that were replayed;"
            f" to count the dead letters by error: {commands.tailrace('dead-letters', 'list', topic.name)}",
        )


def _size_findings(
    topic: TopicFacts, origins: Iterable[TopicFacts], subject: Subject, commands: CommandLines, *, is_read: bool
) -> Iterator[Finding]:
    largest = topic.number("max.message.bytes")
    for origin in origins:
        limit = origin.number("max.message.bytes")
        if 0 < largest < limit:
            yield subject.warning(
                "topic.message-size",
                f"max.message.bytes={largest} is below the {limit} of {origin.name}, whose largest records cannot be"
                " stored here",
                f"set max.message.bytes to that of {origin.name} plus space for headers",
                commands.set_topic(topic.name, f"max.message.bytes={limit + _HEADERS_BYTES}"),
            )
            return
        if topic.partitions < origin.partitions and is_read:
            yield subject.warning(
                "topic.partitions",
                f"has {counted(topic.partitions, 'partition')}, {origin.name} has {origin.partitions}: records of"
                " several partitions share a partition here, and fewer members can handle them",
                f"add partitions up to {origin.partitions}",
                commands.kafka(
                    "kafka-topics", "--alter", "--topic", topic.name, "--partitions", str(origin.partitions)
                ),
            )
            return
