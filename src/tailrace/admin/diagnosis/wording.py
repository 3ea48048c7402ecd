"""Wording of findings: durations, numbers, lists of names, and commands to copy. Pure: no clock, IO or logging."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["CommandLines", "counted", "duration", "named"]

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
