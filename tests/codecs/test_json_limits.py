"""Limits for malicious JSON values: each raises an error in time, and large values do not block the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated

import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient

from tailrace import App, DecodeError, Key, PublishError, Record, SchemaRegistry
from tailrace.app.declare.prepared_handler import prepare
from tailrace.codecs import json_schema
from tailrace.codecs.json_schema import JsonFormat
from tailrace.codecs.wire_format import Schema, header_of
from tailrace.observe.events import RecordDeadLettered
from tests.support.consumer_group import until

DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
EXPRESSION = {
    "anyOf": [
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 0},
    ]
}
"""Recursive schema, for which the time of a validation triples with each level of nesting."""
UNIQUE = {"type": "array", "uniqueItems": True}
DEEP = b"[" * 30 + b"1" + b"]" * 30
MIXED = json.dumps([{"a": number} if number % 2 else number for number in range(20_000)]).encode()
"""200 KB that cannot be sorted."""

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("schema registry")]


def reader(schema, references=None):
    return JsonFormat(validate=True).reader(Schema(1, "JSON", json.dumps(schema), references or {}), object)


def read(schema, payload, references=None):
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return reader(schema, references)(header_of(1) + data)


@pytest.fixture
def short_limit(monkeypatch):
    """Shorten the time limit of a validation, where the test does not check the limit itself."""
    monkeypatch.setattr(json_schema, "_MAX_SECONDS", 0.1)


# ---- the work that one value can cause -----------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [DRAFT_7, DRAFT_2020])
def test_unique_items_take_linear_time(draft):
    """``uniqueItems`` is checked in linear time, although the items cannot be sorted."""
    started = time.process_time()

    assert len(read(UNIQUE | {"$schema": draft}, MIXED)) == 20_000
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("items", "are_unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, "", None, [], {}], True),
        (["1", 1], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([{"a": 1}, {"a": True}], True),
        ([1e300, 10.0**300], False),
        ([[1, 2], [2, 1]], True),
        ([2**53, 2**53 + 1], True),
    ],
)
def test_unique_items_compare_json_values(items, are_unique):
    """Items are equal if they are equal as JSON: numbers by value, objects without regard to order."""
    if are_unique:
        assert read(UNIQUE, items) == items
    else:
        with pytest.raises(ValueError, match="has non-unique elements"):
            read(UNIQUE, items)


EVIL = "^(a|aa)+$"
LONG = "a" * 60 + "b"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": EVIL}, LONG),
        ({"patternProperties": {EVIL: {}}}, {LONG: 1}),
        ({"additionalProperties": False, "patternProperties": {EVIL: {}}}, {LONG: 1}),
        ({"$schema": DRAFT_2020, "unevaluatedProperties": False, "patternProperties": {EVIL: {}}}, {LONG: 1}),
        ({"propertyNames": {"pattern": EVIL}}, {LONG: 1}),
        ({"$schema": DRAFT_2020, "$defs": {"a": {"$schema": DRAFT_7, "pattern": EVIL}}, "$ref": "#/$defs/a"}, LONG),
    ],
    ids=["pattern", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames", "dialect"],
)
def test_a_pattern_takes_limited_time(schema, value, short_limit):
    """A search that would take exponential time ends with an error that names the pattern."""
    started = time.process_time()
    with pytest.raises(ValueError, match=r"the search for the pattern .* takes too long - simplify the pattern"):
        read(schema, value)

    assert time.process_time() - started < 5


def test_a_pattern_of_a_referenced_schema_takes_limited_time(short_limit):
    """A referenced schema that names its own dialect is limited, too."""
    other = json.dumps({"$schema": DRAFT_2020, "pattern": EVIL})
    with pytest.raises(ValueError, match=r"the search for the pattern .* takes too long"):
        read({"$schema": DRAFT_7, "properties": {"a": {"$ref": "other.json"}}}, {"a": LONG}, {"other.json": other})


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"pattern": "^a+$"}, "b", "'b' does not match"),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}, "ab: 1 is not of type 'string'"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"b": 1}, "'b' does not match any of"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"b": 1}, "b: 1 is not of type"),
    ],
)
def test_patterns_are_still_checked(schema, value, message):
    """Values that do not match a pattern raise an error that names them."""
    with pytest.raises(ValueError, match=message):
        read(schema, value)


@pytest.mark.parametrize("references", [None, {"other.json": json.dumps({"$schema": DRAFT_7, **EXPRESSION})}])
def test_a_recursive_schema_takes_limited_time(references):
    """A value of 60 bytes that causes 3^30 validations of a recursive schema raises an error."""
    started = time.process_time()
    with pytest.raises(ValueError, match=r"its validation takes longer than 0\.5 s"):
        read(
            {"$schema": DRAFT_2020, "$ref": "other.json"} if references else EXPRESSION,
            DEEP,
            references,
        )

    assert time.process_time() - started < 5


def test_schemas_that_double_take_limited_time(short_limit):
    """A schema in which definitions refer to the next one twice raises an error instead of running for ever."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(ValueError, match="its validation takes longer than"):
        read({"$schema": DRAFT_2020, "$defs": definitions | {"d40": {}}, "$ref": "#/$defs/d0"}, 1)


@pytest.mark.parametrize("schema", [{"items": {"$ref": "#"}}, {}])
@pytest.mark.parametrize("payload", [b"[" * 600 + b"]" * 600, b"[" * 10**6, b'{"a":' * 10**5])
def test_deep_nesting_raises_an_error(schema, payload):
    """JSON that is nested thousands of levels deep raises an error."""
    with pytest.raises((ValueError, RecursionError)):
        read(schema | {"type": "object"}, payload)


# ---- the event loop ------------------------------------------------------------------------------------------------


def slow_schema():
    """A schema with which 20,000 items take seconds."""
    return {"type": "array", "items": {"allOf": [{"type": ["integer", "object"]}] * 4}}


async def ticks_during(awaitable):
    """Await, and return the result and how many times the event loop ran another task meanwhile."""
    count = 0

    async def tick():
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    try:
        return await awaitable, count
    finally:
        ticking.cancel()


def register(registry, subject, schema):
    text = json.dumps({"$schema": DRAFT_7, **schema})
    with SchemaRegistryClient({"url": registry}) as client:
        return client.register_schema(subject, RegistrySchema(text, "JSON"))


@pytest.mark.parametrize("part", ["value", "key", "batch"])
async def test_a_large_value_is_validated_in_a_thread(part, registry, new_topic):
    """Heartbeats and other handlers run on while a large value, key or batch is validated for seconds."""
    topic = new_topic()
    schema_id = register(registry, f"{topic}-{'key' if part == 'key' else 'value'}", slow_schema())
    data, got = header_of(schema_id) + MIXED, []

    async def take(value: list) -> None:
        got.append(value)

    async def take_key(_record: Record, key: Annotated[list, Key]) -> None:
        got.append(key)

    async def take_batch(values: list[list]) -> None:
        got.extend(values)

    codec = SchemaRegistry(registry, format="json", keys=True)
    handler = {"value": take, "key": take_key, "batch": take_batch}[part]
    prepared = prepare(handler, codec, is_batch=part == "batch")

    def unit(data):
        record = Record(topic, 0, 0, data if part == "key" else None, b"" if part == "key" else data, 0)
        return [record, record] if part == "batch" else record

    await prepared.call(unit(header_of(schema_id) + b"[]"))  # fetches the schema
    _, ticks = await ticks_during(prepared.call(unit(data)))

    assert len(got[-1]) == 20_000
    assert ticks >= 10


async def test_a_large_value_that_does_not_match_is_a_decode_error(registry, new_topic):
    """An error of a validation in a thread is raised as DecodeError, as for a small value."""
    topic = new_topic()
    schema_id = register(registry, f"{topic}-value", {"type": "array", "items": {"type": "integer"}})

    async def take(value: list) -> None: ...

    prepared = prepare(take, SchemaRegistry(registry, format="json"))
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"1: \{'a': 1\} is not of type 'integer'"):
            await prepared.call(Record(topic, 0, 0, None, header_of(schema_id) + MIXED, 0))


async def test_a_large_value_to_publish_is_validated_in_a_thread(registry, new_topic):
    """The event loop runs on while a large published value is validated; a wrong value raises PublishError."""
    topic, value = new_topic(), json.loads(MIXED)
    schemas = {topic: json.dumps({"$schema": DRAFT_7, **slow_schema()})}
    codec = SchemaRegistry(registry, format="json", schemas=schemas, auto_register=True)
    await codec.encode_for(topic, [1])
    encoded, ticks = await ticks_during(codec.encode_for(topic, value))

    assert json.loads(encoded[5:]) == value
    assert ticks >= 10
    with pytest.raises(PublishError, match="is not of type 'integer', 'object'"):
        await codec.encode_for(topic, [*value, "a"])


async def test_a_slow_value_becomes_a_dead_letter(  # noqa: PLR0917 - fixtures
    kafka_server, group, registry, new_topic, recorder, monkeypatch
):
    """On a real broker, values whose validation takes too long become dead letters, and the others are handled."""
    topic, handled = new_topic(), []
    monkeypatch.setattr(json_schema, "_MAX_SECONDS", 0.2)
    schema_id = register(registry, f"{topic}-value", EXPRESSION)
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        codec=SchemaRegistry(registry, format="json"),
        dead_letter="{topic}.{group}.dead",
        hooks=[recorder],
    )

    @app.handler(topic)
    async def handle(value: list) -> None:
        handled.append(value)

    async with app:
        for payload in (b"[]", DEEP, b"[[]]"):
            await app.publish(topic, header_of(schema_id) + payload)
        await until(lambda: len(handled) == 2 and recorder.of(RecordDeadLettered))

    assert handled == [[], [[]]]
    assert len(recorder.of(RecordDeadLettered)) == 1
