"""The tables in ``wire/`` against Kafka's own definitions, field by field, in every version tailrace speaks."""

from __future__ import annotations

import pytest

from tailrace.protocol.api_versions import APIS
from tailrace.protocol.encoding import primitives
from tailrace.protocol.encoding.member_metadata import ASSIGNMENT, SUBSCRIPTION
from tailrace.protocol.encoding.schema import Array, ByTopic, Field, Sole, Struct
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

# Tagged fields that tailrace does not read: a reader passes over what it does not know.
PASSED_OVER = {
    "supported_features",
    "finalized_features_epoch",
    "finalized_features",
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
def test_a_table_says_what_kafka_says(api, kind, version):
    """Every field is there, in order, of Kafka's type, null where Kafka allows null, tagged where Kafka tags."""
    layouts = api.request if kind == "Request" else api.response
    table = max((one for one in layouts if one.since <= version), key=lambda one: one.since).struct

    ours = described(table.fields, version)

    assert without_passed_over(fields_of(f"{api.name}{kind}", version)) == ours


def test_flexible_versions_begin_where_kafkas_do():
    """Lengths are varints from the same version on as Kafka's."""
    cases = [case.values for case in CASES]

    assert [
        case for case in cases if is_flexible(f"{case[0].name}{case[1]}", case[2]) != (case[2] >= case[0].flexible)
    ] == []


def test_keys_are_kafkas():
    """The number of each API is Kafka's."""
    assert [definition(f"{api.name}Request")["apiKey"] for api in APIS] == [api.key for api in APIS]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    ("name", "table"), [("ConsumerProtocolSubscription", SUBSCRIPTION), ("ConsumerProtocolAssignment", ASSIGNMENT)]
)
def test_what_members_tell_each_other_is_kafkas_format(name, table, version):
    """Members of other clients in the group read our subscriptions and assignments, and we read theirs."""
    assert fields_of(name, version) == described(table.fields, version)


def described(fields: tuple[Field, ...], version: int) -> tuple[SchemaField, ...]:
    """A table in the words of the witness."""
    here = [f for f in fields if f.exists_in(version)]
    here.sort(key=lambda f: (f.tag is not None, f.tag or 0))
    return tuple(describe(f, version) for f in here)


def describe(f: Field, version: int) -> SchemaField:
    kind, inner = f.type, ()
    if isinstance(kind, ByTopic):
        entry = kind.entry.fields[0]
        of_partitions = SchemaField(
            kind.name,
            f"[]{NAMES[id(entry.type)]}" if kind.bare else "[]struct",
            nullable=False,
            tag=None,
            fields=() if kind.bare else described(kind.entry.fields, version),
        )
        name, inner = "[]struct", (*described(kind.topic, version), of_partitions)
    elif isinstance(kind, Array) and isinstance(kind.item, Struct):
        name, inner = "[]struct", described(kind.item.fields, version)
    elif isinstance(kind, Array):
        name = f"[]{NAMES[id(kind.item)]}"
    elif isinstance(kind, Struct):
        name, inner = "struct", described(kind.fields, version)
    elif isinstance(kind, Sole):
        name, inner = "struct", described((kind.field,), version)
    else:
        name = NAMES[id(kind)]
    return SchemaField(f.name, name, version >= f.nullable, f.tag, inner)


def without_passed_over(fields: tuple[SchemaField, ...]) -> tuple[SchemaField, ...]:
    return tuple(
        SchemaField(f.name, f.type, f.nullable, f.tag, without_passed_over(f.fields))
        for f in fields
        if f.tag is None or f.name not in PASSED_OVER
    )
