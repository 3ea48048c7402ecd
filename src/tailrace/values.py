"""Base class of immutable values: events, effects, messages.

A consumer's modules declare some two hundred of these classes. A frozen dataclass takes about 1 ms to create, because
its methods are generated as source text; a struct takes a fraction of that, and its instances are created in C.
"""

from __future__ import annotations

from typing import dataclass_transform

import msgspec

__all__ = ["Value"]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """Immutable value with equality by fields; subclasses declare fields as a dataclass does."""
