"""Hypothesis strategies for every message in every version, derived from the tables themselves.

A value is made as the decoder makes it: of what the version has on the wire, by the table's factory. So what was
encoded has to come back equal, and fields that the version lacks have their defaults. A strategy is made once: each
describes itself at length when a test fails.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tailrace.protocol.encoding import primitives, schema
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.encoding.schema import Array, ByTopic, Field, Sole, Struct

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

# Messages have one of what these versions could carry many of.
ONE = {"coordinator_keys", "coordinators", "groups", "members"}


def requests(api: Api[Any], version: int) -> Strategy:
    """Every request that this version can carry."""
    return structs(table(api.request, version), version)


def responses(api: Api[Any], version: int) -> Strategy:
    """Every answer that this version can carry."""
    return structs(table(api.response, version), version)


def table(layouts, version: int) -> Struct:
    """The table that holds in a version."""
    return max((one for one in layouts if one.since <= version), key=lambda one: one.since).struct


@cache
def structs(struct: Struct, version: int) -> Strategy:
    """What a structure's factory makes of its fields."""
    made_by_function = not isinstance(struct.factory, type)
    fields = {f.attribute: of_field(f, version, one=made_by_function) for f in carried(struct.fields, version)}
    return st.fixed_dictionaries(fields).map(lambda values: struct.factory(**values))


def carried(fields: tuple[Field, ...], version: int) -> list[Field]:
    """The fields that a version has, of those that messages have."""
    return [f for f in fields if f.exists_in(version) and f.unused is schema.USED]


def of_field(f: Field, version: int, *, one: bool) -> Strategy:
    """Every value of a field, None if it may be that."""
    values = of_type(f.type, version, most=1 if one and f.name in ONE else 3, least=int(one and f.name in ONE))
    return st.none() | values if version >= f.nullable else values


def of_type(kind: schema.WireType, version: int, *, least: int = 0, most: int = 3) -> Strategy:
    """Every value of a type; arrays are short."""
    match kind:
        case Array(Struct(factory=factory)) if factory is dict:
            # What messages have no name for is written as nothing.
            return st.just(())
        case Array(item):
            return st.lists(of_type(item, version), min_size=least, max_size=most).map(tuple)
        case ByTopic():
            return by_topic(kind, version)
        case Struct():
            return structs(kind, version)
        case Sole(f):
            return of_field(f, version, one=False)
        case _:
            return PLAIN[id(kind)]


def by_topic(kind: ByTopic, version: int) -> Strategy:
    """Entries that name their topics, each topic's in a row as the wire has them."""
    keys = carried(kind.topic, version)
    topics = st.tuples(*(of_type(f.type, version) for f in keys))
    entry_fields = carried(kind.entry.fields, version)
    entry = st.fixed_dictionaries({f.attribute: of_field(f, version, one=False) for f in entry_fields})
    groups = st.dictionaries(topics, st.lists(entry, min_size=1, max_size=2), max_size=2)

    def flat(found: dict[tuple[Any, ...], list[dict[str, Any]]]) -> tuple[Any, ...]:
        return tuple(
            kind.entry.factory(**{f.attribute: part for f, part in zip(keys, topic, strict=True)}, **values)
            for topic, entries in found.items()
            for values in entries
        )

    return groups.map(flat)
