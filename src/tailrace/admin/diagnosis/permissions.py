"""Operations that a principal is authorized for (KIP-430), and findings about missing ones.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.admin.diagnosis.findings import CommandLines, Finding, Subject, named
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

__all__ = ["allowed", "permission_findings"]

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


def permission_findings(
    resource: str, name: str, operations: int, needed: Iterable[str], commands: CommandLines
) -> Iterator[Finding]:
    """Yield a finding for each needed operation that is not authorized; ``resource`` is "topic" or "group"."""
    if operations == OPERATIONS_NOT_REQUESTED:
        return
    for operation in needed:
        if not operations >> _CODES[operation] & 1:
            yield Subject(f"{resource} {name}").problem(
                f"{resource}.permission",
                f"{commands.principal} is not authorized to {operation} this {resource}, only to"
                f" {named(allowed(operations), 8) or '-'}",
                f"grant {operation}",
                commands.allow(operation, resource, name),
            )
