"""Operations that a principal is authorized for (KIP-430), and findings about missing ones.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.admin.diagnosis.findings import Finding, Level
from tailrace.admin.diagnosis.wording import CommandLines, named
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

__all__ = ["allowed", "missing_operations", "permission_findings"]

_CODES = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "ClusterAction": 9,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
}
"""Codes of ``org.apache.kafka.common.acl.AclOperation``."""


def allowed(operations: int) -> tuple[str, ...]:
    """Return the names of the operations in ``operations``, a bit field of a response."""
    return tuple(name for name, code in _CODES.items() if operations >> code & 1)


def missing_operations(operations: int, needed: Iterable[str]) -> tuple[str, ...]:
    """Return the ``needed`` operations that are not in the bit field ``operations``; empty if it is not known."""
    if operations == OPERATIONS_NOT_REQUESTED:
        return ()
    return tuple(name for name in needed if not operations >> _CODES[name] & 1)


def permission_findings(
    resource: str, name: str, operations: int, needed: Iterable[str], commands: CommandLines
) -> Iterator[Finding]:
    """Yield a finding for each needed operation that is missing; ``resource`` is "topic" or "group"."""
    for operation in missing_operations(operations, needed):
        yield Finding(
            f"{resource}.permission",
            Level.PROBLEM,
            f"{resource} {name}",
            f"{commands.principal} is not authorized to {operation} this {resource}, only to"
            f" {named(allowed(operations), 8) or '-'}",
            f"grant {operation}",
            commands.allow(operation, resource, name),
        )
