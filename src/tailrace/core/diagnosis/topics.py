"""Findings about topics: replicas, settings, permissions, and the topics of an app."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from tailrace.core.diagnosis.findings import Finding, Level
from tailrace.core.diagnosis.needs import TopicNeeds, TopicRole
from tailrace.core.diagnosis.permissions import permission_findings
from tailrace.core.diagnosis.wording import CommandLines, counted, duration, named
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
"""Settings that the checks need."""

_HEADERS_BYTES = 16_384
"""Size of the headers of a dead letter with a long traceback."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """State of one topic."""

    name: str
    error_code: int = 0
    is_internal: bool = False
    partitions: int = 0
    replication_factor: int = 0
    """Smallest number of replicas of a partition."""
    smallest_isr: int = 0
    """Smallest number of in-sync replicas of a partition that has a leader."""
    leaderless: tuple[int, ...] = ()
    under_replicated: tuple[int, ...] = ()
    """Partitions with a leader and fewer in-sync replicas than replicas."""
    lacking: frozenset[int] = frozenset()
    """Brokers that are missing from in-sync replicas."""
    operations: int = OPERATIONS_NOT_REQUESTED
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of ``SETTINGS``; empty if unknown."""
    no_settings: str = ""
    """Reason why the settings are unknown."""
    records: int | None = None
    """Number of offsets in the log; None if not counted."""

    @classmethod
    def of(cls, topic: TopicMetadata) -> TopicFacts:
        """Return the facts that a Metadata response contains."""
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
        """True if records are removed when a later record has the same key."""
        return "compact" in self.settings.get("cleanup.policy", "")

    @property
    def is_deleted_by_age(self) -> bool:
        """True if records are deleted by age or by the size of the log."""
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
    """Yield the findings about the checked topics, and one about those without any."""
    by_name = {one.name: one for one in facts.checked}
    sound: list[TopicFacts] = []
    unknown: dict[str, list[str]] = {}
    for one in facts.checked:
        need = needs.get(one.name, TopicNeeds(one.name))
        found = list(_topic(one, need, facts, by_name, commands))
        yield from found
        if one.no_settings:
            unknown.setdefault(one.no_settings, []).append(one.name)
        if one.partitions and all(finding.level is Level.OK for finding in found):
            sound.append(one)
    for reason, names in unknown.items():
        yield Finding(
            "topic.settings",
            Level.SKIPPED,
            "topic settings",
            f"{named(names)}: retention, min.insync.replicas and others not checked: {reason}",
            "grant DescribeConfigs",
            commands.allow("DescribeConfigs", "topic", names[0]),
        )
    if sound:
        yield Finding("topic", Level.OK, "topics", _summary(sound))
    if facts.unhealthy:
        yield _others(facts.unhealthy, commands)


def _others(topics: Sequence[TopicFacts], commands: CommandLines) -> Finding:
    leaderless, short = sum(len(one.leaderless) for one in topics), sum(len(one.under_replicated) for one in topics)
    counts = [(leaderless, "without a leader"), (short, "under-replicated")]
    found = " and ".join(f"{counted(number, 'partition')} {how}" for number, how in counts if number)
    return Finding(
        "topic.others",
        Level.WARNING,
        "other topics",
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


def _topic(
    one: TopicFacts, need: TopicNeeds, facts: TopicsFacts, by_name: Mapping[str, TopicFacts], commands: CommandLines
) -> Iterator[Finding]:
    subject = f"topic {one.name}"
    if one.error_code in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
        yield from _missing(one, need, facts, by_name, commands)
        return
    if one.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        yield Finding(
            "topic.permission",
            Level.PROBLEM,
            subject,
            f"{commands.principal} is not authorized to Describe it, so nothing else was checked",
            f"grant {' and '.join(need.operations) or 'Read'}, which include Describe",
            commands.allow((need.operations or ("Read",))[0], "topic", one.name),
        )
        return
    if one.error_code and not one.partitions:
        yield Finding(
            "topic.error",
            Level.PROBLEM,
            subject,
            f"the brokers report {name_of(one.error_code)}",
            "look at the brokers' logs",
            commands.kafka("kafka-topics", "--describe", "--topic", one.name),
        )
        return
    yield from _replicas(one, subject, commands)
    if one.settings and not one.is_internal:
        yield from _durability(one, facts, subject, commands)
    if one.settings:
        yield from _roles(one, need, by_name, subject, commands)
    yield from permission_findings("topic", one.name, one.operations, need.operations, commands)


def _missing(
    one: TopicFacts, need: TopicNeeds, facts: TopicsFacts, by_name: Mapping[str, TopicFacts], commands: CommandLines
) -> Iterator[Finding]:
    subject = f"topic {one.name}"
    origins = [by_name[name] for name in sorted(need.origins) if name in by_name and by_name[name].partitions]
    partitions = max((origin.partitions for origin in origins), default=3)
    create = commands.kafka(
        "kafka-topics", "--create", "--topic", one.name, "--partitions", str(partitions), "--replication-factor",
        str(max((origin.replication_factor for origin in origins), default=min(3, facts.brokers))),
    )  # fmt: skip
    if need.is_own and not origins:
        return  # the finding about the missing origin is enough
    if need.is_own and facts.may_create is not False:
        yield Finding(
            "topic.own-missing",
            Level.OK,
            subject,
            f"does not exist yet; the app creates it with {counted(partitions, 'partition')} when it starts",
        )
    elif need.is_own:
        is_retry = TopicRole.RETRY in need.roles
        consequence = "the app does not start" if is_retry else "records that fail for good have no place"
        yield Finding(
            "topic.own-missing",
            Level.PROBLEM if is_retry else Level.WARNING,
            subject,
            f"does not exist, and {commands.principal} is not authorized to Create topics in the cluster: unless an ACL"
            f" for this name permits it, {consequence}",
            f"create it with {counted(partitions, 'partition')}, like {named(sorted(need.origins))}, or grant Create",
            create,
        )
    else:
        close = get_close_matches(one.name, facts.names, n=1)
        yield Finding(
            "topic.missing",
            Level.PROBLEM,
            subject,
            f"does not exist; {close[0]} does" if close else "does not exist",
            f"use {close[0]}, or create the topic" if close else "create the topic, or correct its name",
            create,
        )


def _replicas(one: TopicFacts, subject: str, commands: CommandLines) -> Iterator[Finding]:
    minimum = one.number("min.insync.replicas", 0)
    if one.leaderless:
        yield Finding(
            "topic.leaderless",
            Level.PROBLEM,
            subject,
            f"{len(one.leaderless):,} of {counted(one.partitions, 'partition')} without a leader"
            f" ({named(one.leaderless)}): they cannot be read or written",
            "start the brokers that have their replicas",
            commands.kafka("kafka-topics", "--describe", "--topic", one.name, "--unavailable-partitions"),
        )
    if one.under_replicated:
        below = one.smallest_isr < minimum
        consequence = (
            f"at least one has {one.smallest_isr} in sync, below min.insync.replicas={minimum}: writes with acks=all"
            " are refused"
            if below
            else f"at least {one.smallest_isr} of {one.replication_factor} replicas are in sync"
        )
        yield Finding(
            "topic.under-min-isr" if below else "topic.under-replicated",
            Level.PROBLEM if below else Level.WARNING,
            subject,
            f"{len(one.under_replicated):,} of {counted(one.partitions, 'partition')} under-replicated"
            f" ({named(one.under_replicated)}), missing on broker {named(sorted(one.lacking))}; {consequence}",
            "start these brokers, or wait until they have caught up",
            commands.kafka("kafka-topics", "--describe", "--topic", one.name, "--under-replicated-partitions"),
        )


def _durability(one: TopicFacts, facts: TopicsFacts, subject: str, commands: CommandLines) -> Iterator[Finding]:
    minimum, replicas = one.number("min.insync.replicas", 1), one.replication_factor
    if minimum > replicas:
        yield Finding(
            "topic.min-isr",
            Level.PROBLEM,
            subject,
            f"min.insync.replicas={minimum} is above its replication factor {replicas}: every write with acks=all is"
            " refused (NOT_ENOUGH_REPLICAS)",
            f"set min.insync.replicas to {max(replicas - 1, 1)}, or add replicas",
            commands.set_topic(one.name, f"min.insync.replicas={max(replicas - 1, 1)}"),
        )
    elif replicas == 1 and facts.brokers > 1:
        yield Finding(
            "topic.single-replica",
            Level.WARNING,
            subject,
            f"replication factor 1 in a cluster of {facts.brokers} brokers: while a broker is down, its partitions"
            " cannot be read or written",
            "add replicas",
            commands.kafka("kafka-reassign-partitions", "--reassignment-json-file", "plan.json", "--execute"),
        )
    elif minimum == replicas > 1:
        yield Finding(
            "topic.min-isr-equal",
            Level.WARNING,
            subject,
            f"min.insync.replicas={minimum} equals its replication factor: while one broker restarts, writes with"
            " acks=all are refused",
            f"set min.insync.replicas={replicas - 1}",
            commands.set_topic(one.name, f"min.insync.replicas={replicas - 1}"),
        )
    elif minimum == 1 and replicas > 1:
        yield Finding(
            "topic.min-isr-low",
            Level.WARNING,
            subject,
            f"min.insync.replicas=1 with {replicas} replicas: a record may be acknowledged by one broker and lost with"
            " it",
            "set min.insync.replicas=2",
            commands.set_topic(one.name, "min.insync.replicas=2"),
        )
    if one.settings.get("unclean.leader.election.enable") == "true":
        yield Finding(
            "topic.unclean-election",
            Level.WARNING,
            subject,
            "unclean.leader.election.enable=true: acknowledged records are lost if a replica that is not in sync"
            " becomes leader",
            "set unclean.leader.election.enable=false",
            commands.set_topic(one.name, "unclean.leader.election.enable=false"),
        )


def _roles(
    one: TopicFacts, need: TopicNeeds, by_name: Mapping[str, TopicFacts], subject: str, commands: CommandLines
) -> Iterator[Finding]:
    retention = one.number("retention.ms")
    if one.is_compacted and (roles := need.roles - {TopicRole.READ}):
        own = any(role.is_own for role in roles)
        effect = (
            "of records with equal keys, all but the last are removed, and records without a key are refused"
            if own
            else "results without a key are refused"
        )
        yield Finding(
            "topic.compacted",
            Level.PROBLEM if own else Level.WARNING,
            subject,
            f"cleanup.policy={one.settings['cleanup.policy']}: {effect}",
            "set cleanup.policy=delete" if own else "publish every result with a key, or set cleanup.policy=delete",
            commands.set_topic(one.name, "cleanup.policy=delete"),
        )
    if TopicRole.RETRY in need.roles and one.is_deleted_by_age and 0 <= retention < 2 * need.delay_ms:
        yield Finding(
            "topic.retry-retention",
            Level.PROBLEM,
            subject,
            f"retention.ms={retention} ({duration(retention)}) for a delay of {duration(need.delay_ms)}: records may be"
            " deleted before they are retried",
            f"set a retention of more than {duration(2 * need.delay_ms)}",
            commands.set_topic(one.name, f"retention.ms={max(604_800_000, 10 * need.delay_ms)}"),
        )
    if TopicRole.DEAD_LETTER in need.roles and one.is_deleted_by_age and retention >= 0:
        yield Finding(
            "topic.dead-letter-retention",
            Level.WARNING,
            subject,
            f"retention.ms={retention}: dead letters are deleted after {duration(retention)}, replayed or not",
            "set retention.ms=-1, as for the dead-letter topics that tailrace creates",
            commands.set_topic(one.name, "retention.ms=-1"),
        )
    if need.is_own:
        origins = [by_name[name] for name in sorted(need.origins) if name in by_name]
        yield from _sizes(one, origins, subject, commands, is_read="Read" in need.operations)
    if TopicRole.DEAD_LETTER in need.roles and one.records:
        yield Finding(
            "topic.dead-letters",
            Level.OK,
            subject,
            f"holds {counted(one.records, 'dead letter')}, replayed ones included;"
            f" to count them by error: {commands.tailrace('dead-letters', 'list', one.name)}",
        )


def _sizes(
    one: TopicFacts, origins: Iterable[TopicFacts], subject: str, commands: CommandLines, *, is_read: bool
) -> Iterator[Finding]:
    largest = one.number("max.message.bytes")
    for origin in origins:
        limit = origin.number("max.message.bytes")
        if 0 < largest < limit:
            yield Finding(
                "topic.message-size",
                Level.WARNING,
                subject,
                f"max.message.bytes={largest} is below the {limit} of {origin.name}, whose largest records cannot be"
                " stored here",
                "set at least that size and room for headers",
                commands.set_topic(one.name, f"max.message.bytes={limit + _HEADERS_BYTES}"),
            )
            return
        if one.partitions < origin.partitions and is_read:
            yield Finding(
                "topic.partitions",
                Level.WARNING,
                subject,
                f"has {counted(one.partitions, 'partition')}, {origin.name} has {origin.partitions}: records of several"
                " partitions share one, and fewer members can handle them",
                f"add partitions up to {origin.partitions}",
                commands.kafka("kafka-topics", "--alter", "--topic", one.name, "--partitions", str(origin.partitions)),
            )
            return
