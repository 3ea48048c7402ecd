"""Schema from a registry, with the schemas that it references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Schema"]


@dataclass(frozen=True, slots=True)
class Schema:
    """Schema from a registry.

    Attributes:
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        references: texts of all schemas that this schema references, directly and indirectly, by name. Each text comes
            after those that it references.
        read_rules: names of the enabled rules that apply to reading.
        write_rules: names of the enabled rules that apply to writing.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    read_rules: Sequence[str] = ()
    write_rules: Sequence[str] = ()
