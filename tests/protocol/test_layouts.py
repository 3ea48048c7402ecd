"""Declared messages, compared with Kafka's definitions field by field in all supported versions."""

from __future__ import annotations

import pytest

from tailrace.protocol.encoding import primitives
from tailrace.protocol.encoding.codec import (
    Array,
    ByTopic,
    OneElementArray,
    OneFieldStructure,
    Slot,
    Structure,
    layout,
)
from tailrace.protocol.groups import MemberAssignment, MemberSubscription
from tailrace.testing.faults import APIS
from tests.support.protocol.kafka_schemas import SchemaField, definition, fields_of, is_flexible

NAMES = {
    id(primitives.BOOL): "bool",
    id(primitives.INT8): "int8",
    id(primitives.INT16): "int16",
    id(primitives.INT32): "int32",
    id(primitives.INT64): "int64",
    id(primitives.UUIDS): "uuid",
    id(primitives.STRING): "string",
    id(primitives.BYTES): "bytes",
    id(primitives.RECORDS): "records",
}

# Tagged fields that tailrace does not read and skips as unknown.
PASSED_OVER = {
    "zk_migration_ready",
    "snapshot_id",
    "cluster_id",
    "replica_state",
    "replica_directory_id",
    "high_watermark",
}

CASES = [
    pytest.param(api, kind, version, id=f"{api.name}{kind}-v{version}")
    for api in APIS
    for version in api.versions
    for kind in ("Request", "Response")
]


@pytest.mark.parametrize(("api", "kind", "version"), CASES)
def test_a_message_has_kafkas_fields(api, kind, version):
    """The fields of a message have Kafka's order, types, nullability and tags."""
    ours = described(layout(api.request_type if kind == "Request" else api.response_type, version))

    assert without_passed_over(fields_of(f"{api.name}{kind}", version)) == ours


def test_flexible_versions_begin_where_kafkas_do():
    """A message is flexible from the same version on as in Kafka."""
    cases = [case.values for case in CASES]

    assert [
        case for case in cases if is_flexible(f"{case[0].name}{case[1]}", case[2]) != (case[2] >= case[0].flexible_from)
    ] == []


def test_api_keys_equal_kafkas():
    """The API keys are those of Kafka."""
    assert [definition(f"{api.name}Request")["apiKey"] for api in APIS] == [api.key for api in APIS]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    ("name", "kind"),
    [("ConsumerProtocolSubscription", MemberSubscription), ("ConsumerProtocolAssignment", MemberAssignment)],
)
def test_member_metadata_has_kafkas_format(name, kind, version):
    """Subscriptions and assignments have Kafka's fields."""
    assert fields_of(name, version) == described(layout(kind, version))


def described(structure: Structure) -> tuple[SchemaField, ...]:
    """Return a layout in the format of Kafka's schemas."""
    return tuple(describe(slot) for slot in (*structure.untagged_fields, *structure.tagged_fields))


def describe(slot: Slot) -> SchemaField:
    name, inner = type_of(slot.shape)
    return SchemaField(slot.name, name, slot.nullable, slot.tag, inner)


def type_of(shape) -> tuple[str, tuple[SchemaField, ...]]:
    match shape:
        case ByTopic(keys, name, entry):
            kind, inner = type_of(Array(entry))
            return "[]struct", (*map(describe, keys), SchemaField(name, kind, nullable=False, tag=None, fields=inner))
        case Array(item) | OneElementArray(item):
            kind, inner = type_of(item)
            return f"[]{kind}", inner
        case Structure(slots=(only,), bare=True):
            return type_of(only.shape)
        case Structure():
            return "struct", described(shape)
        case OneFieldStructure(slot):
            return "struct", (describe(slot),)
        case _:
            return NAMES[id(shape)], ()


def without_passed_over(fields: tuple[SchemaField, ...]) -> tuple[SchemaField, ...]:
    return tuple(
        SchemaField(f.name, f.type, f.nullable, f.tag, without_passed_over(f.fields))
        for f in fields
        if f.tag is None or f.name not in PASSED_OVER
    )
