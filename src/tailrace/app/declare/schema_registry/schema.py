"""Schema of a registry, with everything needed to read and write with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Schema"]


@dataclass(frozen=True, slots=True)
class Schema:
    """Schema of a registry.

    Attributes:
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        references: texts of all schemas that it references, by name, each after those that it references itself.
        read_rules: names of the enabled rules for reading.
        write_rules: names of the enabled rules for writing.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    read_rules: Sequence[str] = ()
    write_rules: Sequence[str] = ()
