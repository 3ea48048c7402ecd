"""A schema as a registry has it, with all that is needed to read and write by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Schema"]


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a registry has it.

    Attributes:
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        references: names and texts of the schemas that it needs, each behind those that it needs itself.
        read_rules: names of the rules that have to be run over what was written with it.
        write_rules: and over what is to be written.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    read_rules: Sequence[str] = ()
    write_rules: Sequence[str] = ()
