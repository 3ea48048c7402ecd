"""Findings of ``tailrace doctor``, their wording, and the topics and groups that they are about.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.protocol.handshake import Capability

__all__ = [
    "ClusterNeeds",
    "CommandLines",
    "Finding",
    "GroupNeeds",
    "Level",
    "RequestSupport",
    "Subject",
    "TopicNeeds",
    "TopicRole",
    "counted",
    "duration",
    "exit_code",
    "named",
]


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    SKIPPED = "skipped"
    """Not checked, for example because a permission is missing."""
    WARNING = "warning"
    """Works now, and will fail or lose records under a foreseeable condition."""
    PROBLEM = "problem"
    """Fails or loses records now."""


@dataclass(frozen=True, slots=True)
class RequestSupport:
    """Versions of a request that a capability needs, and that each broker offers."""

    capability: str
    request: str
    needed: range
    offered: Mapping[int, range]
    """Versions by node id; empty if the broker does not offer the request."""

    def is_enough(self, node_id: int) -> bool:
        """Return True if the broker offers a version that the capability needs."""
        offered = self.offered[node_id]
        return bool(offered) and offered[0] <= self.needed[-1] and offered[-1] >= self.needed[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of one subject."""

    check: str
    """Stable name of the check, such as ``topic.min-isr``."""
    level: Level
    subject: str
    """Object that was checked, such as ``topic orders``."""
    text: str
    """Measured value and its consequence, worded so that the text can follow the subject and a colon."""
    advice: str = ""
    """Next step; empty if nothing has to be done."""
    command: str = ""
    """Command of the next step; empty if there is none."""
    table: tuple[RequestSupport, ...] = ()
    """Rows of the table that follows the text."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Object that was checked, such as ``topic orders``; creates the findings about it."""

    name: str

    def finding(self, level: Level, check: str, text: str, advice: str = "", command: str = "") -> Finding:
        return Finding(check, level, self.name, text, advice, command)

    def ok(self, check: str, text: str) -> Finding:
        return self.finding(Level.OK, check, text)

    def skipped(self, check: str, text: str, advice: str = "", command: str = "") -> Finding:
        return self.finding(Level.SKIPPED, check, text, advice, command)

    def warning(self, check: str, text: str, advice: str, command: str) -> Finding:
        return self.finding(Level.WARNING, check, text, advice, command)

    def problem(self, check: str, text: str, advice: str, command: str) -> Finding:
        return self.finding(Level.PROBLEM, check, text, advice, command)


def exit_code(findings: Iterable[Finding], *, strict: bool) -> int:
    """Return 2 if there is a problem, 1 for warnings if ``strict``, otherwise 0."""
    levels = {one.level for one in findings}
    if Level.PROBLEM in levels:
        return 2
    return int(strict and Level.WARNING in levels)


# ---- needs ---------------------------------------------------------------------------------------------------------


class TopicRole(StrEnum):
    """Use of a topic by an app."""

    READ = "read"
    RETRY = "retry"
    PUBLISH_DELAY = "publish-delay"
    DEAD_LETTER = "dead-letter"
    REPLAY = "replay"
    PUBLISH = "publish"

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that an app needs on a topic with this role."""
        match self:
            case TopicRole.READ:
                return ("Read",)
            case TopicRole.RETRY | TopicRole.PUBLISH_DELAY:
                return ("Read", "Write")
            case TopicRole.REPLAY:
                return ("Read",)
            case TopicRole.DEAD_LETTER | TopicRole.PUBLISH:
                return ("Write",)

    @property
    def is_own(self) -> bool:
        """True for the topics of a group that the app creates, such as its retry topics."""
        return self not in {TopicRole.READ, TopicRole.PUBLISH}


@dataclass(frozen=True, slots=True)
class TopicNeeds:
    """Use of one topic."""

    name: str
    roles: frozenset[TopicRole] = frozenset()
    """Roles of the topic; empty if it was only named on the command line."""
    origins: frozenset[str] = frozenset()
    """Topics whose records a retry, replay or dead-letter topic contains."""
    delay_ms: int = 0
    """Delay of a retry topic, or of a topic of delayed messages, in milliseconds; 0 for other topics."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that the app needs on the topic."""
        return tuple(sorted({operation for role in self.roles for operation in role.operations}))

    @property
    def is_own(self) -> bool:
        """True if the app creates the topic when it starts."""
        return any(role.is_own for role in self.roles)


@dataclass(frozen=True, slots=True)
class GroupNeeds:
    """Group to check."""

    group_id: str
    topics: frozenset[str] = frozenset()
    """Topics that the app's handlers read by name; empty if unknown."""
    group_protocol: str = ""
    """Protocol of the app's members; empty if unknown."""
    strategies: tuple[str, ...] = ()
    """Assignors of the app's members."""
    start: str = ""
    """Command that starts a member, such as ``tailrace run shop:billing``; empty if unknown."""

    @property
    def is_of_app(self) -> bool:
        """True if the group is that of an app; False if it was only named on the command line."""
        return bool(self.group_protocol)


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """Topics and groups to check; if there are neither, the whole cluster is checked."""

    groups: tuple[GroupNeeds, ...] = ()
    topics: Mapping[str, TopicNeeds] = field(default_factory=dict)
    capabilities: frozenset[Capability] = frozenset()
    """Capabilities that the app needs and that not all brokers have."""


# ---- wording -------------------------------------------------------------------------------------------------------

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_LEAST_COUNT = 2
"""Least number of a unit with which the unit is used, so that 36 hours are not rounded to "2 d"."""


def duration(milliseconds: float) -> str:
    """Format a duration: ``7 d``, ``90 min``, ``250 ms``."""
    for unit, size in _UNITS:
        if abs(milliseconds) >= _LEAST_COUNT * size or abs(milliseconds) == size:
            return f"{milliseconds / size:,.0f} {unit}"
    return f"{milliseconds:.1f} ms"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 partition``, ``2 partitions``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def named(names: Collection[object], most: int = 4) -> str:
    """List at most ``most`` names and the number of the others."""
    shown = [str(one) for one in list(names)[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


@dataclass(frozen=True, slots=True)
class CommandLines:
    """Builder of commands to copy, with the arguments that reach this cluster."""

    bootstrap: str = "localhost:9092"
    """Address of a broker, for Kafka's tools."""
    connection: str = ""
    """Arguments of tailrace's commands, such as ``--app shop:billing``."""
    client_config: bool = False
    """True if Kafka's tools need a file with the security settings."""
    principal: str = "User:NAME"
    """Principal of this client, for ACLs."""

    def tailrace(self, *words: str) -> str:
        """Return the command ``tailrace`` with these arguments."""
        return " ".join(["tailrace", *map(shlex.quote, words), *([self.connection] if self.connection else [])])

    def kafka(self, tool: str, *words: str) -> str:
        """Return a command of one of Kafka's tools, such as ``kafka-topics``, with these arguments."""
        security = ["--command-config", "client.properties"] if self.client_config else []
        return shlex.join([f"{tool}.sh", "--bootstrap-server", self.bootstrap, *security, *words])

    def set_topic(self, topic: str, setting: str) -> str:
        """Return the command that sets a topic's ``setting``, such as ``retention.ms=-1``."""
        return self.kafka(
            "kafka-configs", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", setting
        )

    def allow(self, operation: str, resource: str, name: str) -> str:
        """Return the command that grants an operation; ``resource`` is ``topic``, ``group`` or ``cluster``."""
        where = ["--cluster"] if resource == "cluster" else [f"--{resource}", name]
        return self.kafka("kafka-acls", "--add", "--allow-principal", self.principal, "--operation", operation, *where)

    @staticmethod
    def connect(host: str, port: int) -> str:
        """Return the command that tries a TCP connection."""
        return shlex.join(["nc", "-vz", host, str(port)])
