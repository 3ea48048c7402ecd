"""Hypothesis strategies for all messages in all versions, derived from their layouts.

A value has the fields of its version, as a decoder returns them, so that a round trip returns an equal value; fields
that the version lacks have their defaults. Strategies are cached, since each has a long description when a test fails.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tailrace.protocol.encoding import primitives
from tailrace.protocol.encoding.codec import (
    Array,
    ByTopic,
    OneElementArray,
    OneFieldStructure,
    Shape,
    Slot,
    Structure,
    layout,
)
from tailrace.protocol.message import Api

Strategy = st.SearchStrategy[Any]

# All lengths of UTF-8; the whole of Unicode would take Hypothesis seconds to sort.
TEXTS = st.text("a9.é☃𝄞\0", max_size=6)
BYTES = st.binary(max_size=6)

PLAIN: dict[int, Strategy] = {
    id(primitives.BOOL): st.booleans(),
    id(primitives.INT8): st.integers(-(1 << 7), (1 << 7) - 1),
    id(primitives.INT16): st.integers(-(1 << 15), (1 << 15) - 1),
    id(primitives.INT32): st.integers(-(1 << 31), (1 << 31) - 1),
    id(primitives.INT64): st.integers(-(1 << 63), (1 << 63) - 1),
    id(primitives.UUIDS): st.integers(0, (1 << 128) - 1).map(lambda number: UUID(int=number)),
    id(primitives.STRING): TEXTS,
    id(primitives.BYTES): BYTES,
    id(primitives.RECORDS): BYTES.map(memoryview),
}


def requests(api: Api[Any], version: int) -> Strategy:
    """Return a strategy for all requests that this version can carry."""
    return messages(api.request_type, version)


def responses(api: Api[Any], version: int) -> Strategy:
    """Return a strategy for all responses that this version can carry."""
    return messages(api.response_type, version)


@cache
def messages(kind: type, version: int) -> Strategy:
    """Return a strategy for all messages of a class that this version can carry."""
    return structs(layout(kind, version))


@cache
def structs(structure: Structure) -> Strategy:
    """Return a strategy for all messages of a structure."""
    return st.fixed_dictionaries(fields(structure)).map(lambda values: structure.message(**values))


def fields(structure: Structure) -> dict[str, Strategy]:
    """Return strategies for all fields; those in an array of one element are fields of the message."""
    found: dict[str, Strategy] = {}
    for slot in structure.slots:
        found |= (
            fields(slot.shape.element) if isinstance(slot.shape, OneElementArray) else {slot.attribute: of_slot(slot)}
        )
    return found


def of_slot(slot: Slot) -> Strategy:
    """Return a strategy for a field, with None if it is nullable."""
    values = of_shape(slot.shape)
    return st.none() | values if slot.nullable else values


def of_shape(shape: Shape) -> Strategy:
    """Return a strategy for a type; arrays are short."""
    match shape:
        case Array(item):
            return st.lists(of_shape(item), max_size=3).map(tuple)
        case ByTopic():
            return by_topic(shape)
        case Structure():
            return structs(shape)
        case OneFieldStructure(slot):
            return of_slot(slot)
        case _:
            return PLAIN[id(shape)]


def by_topic(shape: ByTopic) -> Strategy:
    """Return a strategy for entries with their topics, grouped by topic as on the wire."""
    topics = st.tuples(*(of_slot(slot) for slot in shape.keys))
    entry = st.fixed_dictionaries(fields(shape.entry))
    groups = st.dictionaries(topics, st.lists(entry, min_size=1, max_size=2), max_size=2)

    def flat(found: dict[tuple[Any, ...], list[dict[str, Any]]]) -> tuple[Any, ...]:
        return tuple(
            shape.entry.message(
                **{slot.attribute: part for slot, part in zip(shape.keys, topic, strict=True)}, **values
            )
            for topic, entries in found.items()
            for values in entries
        )

    return groups.map(flat)
