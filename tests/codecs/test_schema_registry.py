"""SchemaRegistry with a real registry and broker, reading and writing records together with confluent-kafka."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
import ssl
import subprocess
import sys
from decimal import Decimal
from typing import Annotated

import msgspec
import pydantic
import pytest
import trustme
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from tailrace import (
    App,
    ConfigurationError,
    Consumer,
    DecodeError,
    Key,
    Message,
    PublishError,
    Record,
    Retry,
    SchemaRegistry,
    SchemaRegistryError,
)
from tailrace.app.declare.prepared_handler import prepare
from tailrace.observe.events import BatchFailed, HandlerFailed, RecordDeadLettered, RecordSkipped
from tests.support.consumer_group import until
from tests.support.schema_registry import Gate

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "customer", "type": "string"}, {"name": "total", "type": "long"}],
    }
)
NEWER = json.dumps(
    json.loads(AVRO)
    | {"fields": [*json.loads(AVRO)["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
)
DRAFT = "http://json-schema.org/draft-07/schema#"
JSON = json.dumps(
    {
        "$schema": DRAFT,
        "title": "Order",
        "type": "object",
        "properties": {"customer": {"type": "string"}, "total": {"type": "integer"}},
        "required": ["customer", "total"],
    }
)

pytestmark = [
    pytest.mark.timeout(400),  # the registry is downloaded at the first run
    pytest.mark.xdist_group("schema registry"),  # avoids a second download
]
QUICK = Retry(attempts=2, backoff_ms=1, max_backoff_ms=50)


class Order(msgspec.Struct):
    customer: str
    total: int


class NotedOrder(msgspec.Struct):
    customer: str
    total: int
    note: str | None = "none"


@dataclasses.dataclass
class PlainOrder:
    customer: str
    total: int


class ModelOrder(pydantic.BaseModel):
    customer: str
    total: int


def generated():
    """Message classes as protoc generates them: two messages, a nested one, and one from an imported file."""
    base = descriptor_pb2.FileDescriptorProto(name="shop/base.proto", package="shop", syntax="proto3")
    base.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="shop/orders.proto", package="shop", syntax="proto3")
    file.dependency.append("shop/base.proto")
    for name in ("Invoice", "Order"):
        message = file.message_type.add(name=name)
        message.field.add(name="customer", number=1, type=9, label=1)
        message.field.add(name="total", number=2, type=3, label=1)
        message.field.add(name="paid", number=3, type=11, label=1, type_name=".shop.Money")
    file.message_type[1].nested_type.add(name="Line").field.add(name="amount", number=1, type=5, label=1)
    pool = DescriptorPool()
    pool.Add(base)
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in ("Invoice", "Order", "Order.Line", "Money")
    ]


ProtoInvoice, ProtoOrder, ProtoLine, ProtoMoney = generated()


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{"group_id": group, "retry": QUICK, **options})

    return make


async def read_all(kafka_server, topic, count):
    async with Consumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(30):
            return [await consumer.getone() for _ in range(count)]


clients: list[SchemaRegistryClient] = []


def confluents_client(url):
    """Return a client that is closed after the test."""
    clients.append(SchemaRegistryClient({"url": url}))
    return clients[-1]


@pytest.fixture(autouse=True)
def closed_clients():
    yield
    while clients:
        clients.pop().__exit__()


SUBJECT = {"subject.name.strategy": topic_subject_name_strategy}


def confluents(url, topic, form):
    """Return confluent-kafka's serializer and deserializer for the values of a topic."""
    client, ctx = confluents_client(url), SerializationContext(topic, MessageField.VALUE)
    write, read = {
        "avro": lambda: (AvroSerializer(client, AVRO, conf=SUBJECT), AvroDeserializer(client, conf=SUBJECT)),
        "json": lambda: (
            JSONSerializer(JSON, client, conf=SUBJECT),
            JSONDeserializer(None, schema_registry_client=client, conf=SUBJECT),
        ),
        "protobuf": lambda: (
            ProtobufSerializer(ProtoOrder, client, conf=SUBJECT),
            ProtobufDeserializer(ProtoOrder, SUBJECT, client),
        ),
    }[form]()
    return lambda value: write(value, ctx), lambda data: read(data, ctx)


async def decoded(codec, annotation, data):
    """Decode a value as for a handler."""
    decode = codec.decoder(annotation)
    if codec.lacks(data):
        await codec.fetch(data)
    return decode(data)


# ---- on the broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
async def test_values_are_exchanged_with_confluent_kafka_in_each_format(  # noqa: PLR0917 - fixtures
    form, gate, new_app, new_topic, witness, kafka_server, group
):
    """Handlers decode records written by confluent-kafka, and confluent-kafka decodes their results."""
    topic, out = new_topic(), new_topic()
    kind = ProtoOrder if form == "protobuf" else Order
    write, _ = confluents(gate.url, topic, form)
    _, read = confluents(gate.url, out, form)
    given = [kind(customer=f"c{n}", total=n) for n in range(50)]
    witness.produce(topic, [write(one if form == "protobuf" else msgspec.structs.asdict(one)) for one in given])
    schemas = {"avro": {out: AVRO}, "json": {out: JSON}, "protobuf": {}}[form]
    app, got = new_app(codec=SchemaRegistry(gate.url, format=form, schemas=schemas, auto_register=True)), []

    async def handle(order):
        got.append(order)
        return order

    handle.__annotations__["order"] = kind
    app.handler(topic, publish=out)(handle)

    async with app:
        await until(lambda: len(got) == 50)
        assert await app.publish(out, kind(customer="ann", total=7)) is not None

    assert got == given
    assert type(got[0]) is kind
    written = [await asyncio.to_thread(read, record.value) for record in await read_all(kafka_server, out, 51)]
    totals = [one.total if form == "protobuf" else one["total"] for one in written]
    assert totals == [*range(50), 7]
    assert await witness.committed(group, topic, 1) == {0: 50}


async def test_one_handler_receives_records_of_two_schema_versions(gate, new_app, new_topic, witness, registry):
    """Records of an old and a new schema version decode to one type; missing fields get their defaults."""
    topic = new_topic()
    ctx, client = SerializationContext(topic, MessageField.VALUE), confluents_client(registry)
    old, new = (AvroSerializer(client, text, conf=SUBJECT) for text in (AVRO, NEWER))
    first = [old({"customer": "ann", "total": n}, ctx) for n in range(3)]
    second = [new({"customer": "bob", "total": n, "note": "fragile"}, ctx) for n in range(3)]
    witness.produce(topic, [one for pair in zip(first, second, strict=True) for one in pair])
    app, got = new_app(codec=SchemaRegistry(gate.url)), []

    @app.handler(topic)
    async def handle(order: NotedOrder) -> None:
        got.append((order.customer, order.total, order.note))

    async with app:
        await until(lambda: len(got) == 6)

    assert got == [one for n in range(3) for one in (("ann", n, "none"), ("bob", n, "fragile"))]
    assert len([path for path in gate.asked if re.fullmatch(r"/schemas/ids/\d+", path)]) == 2


async def test_an_undecodable_record_is_dead_lettered_once_with_its_bytes(  # noqa: PLR0917 - fixtures
    registry, new_app, new_topic, witness, kafka_server, group, recorder
):
    """An undecodable value is dead-lettered with its raw bytes after one attempt; the next record is handled."""
    topic = new_topic()
    dead = f"{topic}.{group}.dead"
    kafka_server.create_topic(dead)
    write, _ = confluents(registry, topic, "avro")
    good = write({"customer": "ann", "total": 5})
    bad = [b"", b"{}", b'{"customer": "ann"}', b"\x00\x7f\xff\xff\xffrest", good[:5] + b"\xff" * 12, good[:-2]]
    witness.produce(topic, [*bad, good])
    app, got = new_app(codec=SchemaRegistry(registry), dead_letter="{topic}.{group}.dead", hooks=[recorder]), []

    @app.handler(topic)
    async def handle(order: Order) -> None:
        got.append(order)

    async with app:
        await until(lambda: got)

    letters = await read_all(kafka_server, dead, len(bad))
    assert got == [Order("ann", 5)]
    assert [letter.value for letter in letters] == bad
    assert {dict(letter.headers)["tailrace-attempts"] for letter in letters} == {b"1"}
    assert {dict(letter.headers)["tailrace-error-type"].rpartition(b".")[2] for letter in letters} == {b"DecodeError"}
    assert len(recorder.of(RecordDeadLettered)) == len(bad)
    assert await witness.committed(group, topic, 1) == {0: len(bad) + 1}


async def test_a_tombstone_needs_no_schema(gate, new_app, new_topic, witness):
    """A null value reaches a handler of ``| None`` as None, and None is published as null."""
    topic, out = new_topic(), new_topic()
    witness.produce(topic, [None], keys=[b"ann"])
    app, got = new_app(codec=SchemaRegistry(gate.url)), []

    @app.handler(topic, publish=out)
    async def handle(order: Order | None, key: Annotated[str, Key]) -> Message:
        got.append(order)
        return Message(None, key=key)

    async with app:
        await until(lambda: got)

    assert got == [None]
    assert gate.asked == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
async def test_records_wait_for_a_registry_that_is_down(  # noqa: PLR0917 - fixtures
    is_async, gate, new_app, new_topic, witness, kafka_server, group, recorder
):
    """While the registry is down, records are retried without limit and none is lost; then each is handled once."""
    topic = new_topic()
    dead = f"{topic}.{group}.dead"
    kafka_server.create_topic(dead)
    write, _ = confluents(gate.url, topic, "avro")
    witness.produce(topic, [write({"customer": "ann", "total": n}) for n in range(20)])
    gate.stop()
    app, got = new_app(codec=SchemaRegistry(gate.url), dead_letter="{topic}.{group}.dead", hooks=[recorder]), []

    async def handle(order: Order) -> None:
        got.append(order.total)

    def handle_in_thread(order: Order) -> None:
        got.append(order.total)

    app.handler(topic)(handle if is_async else handle_in_thread)
    async with app:
        # More failures than the retry policy has attempts.
        await recorder.wait_for(HandlerFailed, QUICK.attempts + 3)
        assert got == []
        gate.start()
        await until(lambda: len(got) == 20)

    assert got == list(range(20))
    assert all("SchemaRegistryError" in one.error for one in recorder.of(HandlerFailed))
    assert recorder.of(RecordDeadLettered) == []
    assert await witness.ends(dead, 1) == {0: 0}
    assert await witness.committed(group, topic, 1) == {0: 20}


@pytest.mark.parametrize("kind", ["single", "batch"])
async def test_the_timeout_of_a_handler_excludes_the_registry(kind, gate, new_app, new_topic, witness, recorder):  # noqa: PLR0917
    """A handler's ``timeout_ms`` excludes the registry: a slow registry uses up no attempt and skips no record."""
    topic, got = new_topic(), []
    write, _ = confluents(gate.url, topic, "avro")
    witness.produce(topic, [write({"customer": "ann", "total": 5})])
    gate.open.clear()
    app = new_app(codec=SchemaRegistry(gate.url, timeout_ms=400), on_failure="skip", hooks=[recorder])

    async def handle(order: Order) -> None:
        got.append(order.total)

    async def handle_batch(orders: list[Order]) -> None:
        got.extend(order.total for order in orders)

    if kind == "batch":
        app.batch_handler(topic, timeout_ms=150)(handle_batch)
    else:
        app.handler(topic, timeout_ms=150)(handle)
    async with app:
        await until(lambda: len(recorder.of(HandlerFailed) + recorder.of(BatchFailed)) > QUICK.attempts)
        gate.open.set()
        await until(lambda: got)

    assert got == [5]
    assert recorder.of(RecordSkipped) == []


async def test_results_wait_for_a_registry_that_is_down(  # noqa: PLR0917 - fixtures
    gate, new_app, new_topic, witness, kafka_server, recorder
):
    """A result whose schema cannot be fetched is published when the registry is back; no dead letter is written."""
    topic, out = new_topic(), new_topic()
    witness.produce(topic, [b"5"])
    gate.stop()
    codec = SchemaRegistry(gate.url, schemas={out: AVRO}, auto_register=True)
    app = new_app(codec=codec, hooks=[recorder], on_failure="skip")

    @app.handler(topic, publish=out)
    async def handle(value: bytes) -> Order:
        return Order("ann", int(value))

    async with app:
        await recorder.wait_for(HandlerFailed, QUICK.attempts + 1)
        gate.start()
        (record,) = await read_all(kafka_server, out, 1)

    _, read = confluents(gate.url, out, "avro")
    assert await asyncio.to_thread(read, record.value) == {"customer": "ann", "total": 5}


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["avro", "json"])
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict, {"customer": "ann", "total": 5}),
        (dict[str, int | str], {"customer": "ann", "total": 5}),
        (object, {"customer": "ann", "total": 5}),
        (Order, Order("ann", 5)),
        (Order | None, Order("ann", 5)),
        (PlainOrder, PlainOrder("ann", 5)),
        (ModelOrder, ModelOrder(customer="ann", total=5)),
    ],
    ids=str,
)
async def test_annotations_decode_as_without_a_registry(form, annotation, value, registry):
    """With a registry, values decode to the same annotations as without one."""
    codec = SchemaRegistry(
        registry, format=form, schemas={f"{form}-t": {"avro": AVRO, "json": JSON}[form]}, auto_register=True
    )
    data = await codec.encode_for(f"{form}-t", value)

    assert data[0] == 0
    assert await decoded(SchemaRegistry(registry, format=form), annotation, data) == value
    assert await decoded(codec, bytes, data) == data


async def test_avro_preserves_bytes_decimals_and_enums(registry, new_topic):
    """Bytes, decimals and enums are the same after encoding and decoding."""
    schema = json.dumps(
        {
            "type": "record",
            "name": "Thing",
            "fields": [
                {"name": "raw", "type": "bytes"},
                {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
            ],
        }
    )

    class Thing(msgspec.Struct):
        raw: bytes
        price: Decimal
        size: str

    topic = new_topic()
    codec, thing = (
        SchemaRegistry(registry, schemas={topic: schema}, auto_register=True),
        Thing(b"\xff", Decimal("1.25"), "L"),
    )

    assert await decoded(codec, Thing, await codec.encode_for(topic, thing)) == thing


async def test_protobuf_types_are_distinguished_by_message(gate):
    """The message indexes select the class, in unions and for nested messages; a different message is an error."""
    codec = SchemaRegistry(gate.url, format="protobuf", auto_register=True)
    order, line = ProtoOrder(customer="ann", total=5, paid=ProtoMoney(cents=7)), ProtoLine(amount=3)
    first, second = await codec.encode_for("p", order), await codec.encode_for("p", line)
    reading = SchemaRegistry(gate.url, format="protobuf")

    assert await decoded(reading, ProtoInvoice | ProtoOrder, first) == order
    assert await decoded(reading, ProtoLine, second) == line
    assert await decoded(reading, dict, second) == {"amount": 3}
    assert await decoded(reading, Order, first) == Order("ann", 5)
    with pytest.raises(ValueError, match=r"the message is a shop\.Order"):
        await decoded(reading, ProtoInvoice, first)
    with pytest.raises(ValueError, match="message indexes"):
        await decoded(reading, ProtoOrder, first[:5] + b"\x02\x20")


async def test_a_protobuf_schema_stored_as_source_is_fetched_serialized(gate):
    """A schema stored as .proto source is fetched in serialized form; without that form, only one class decodes."""
    codec = SchemaRegistry(gate.url, format="protobuf", auto_register=True)
    data = await codec.encode_for("p", ProtoOrder(customer="ann"))
    _, read = confluents(gate.url, "p", "protobuf")
    answer = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message Order { string customer = 1; }'}
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    for name in ("Invoice", "Order"):
        file.message_type.add(name=name).field.add(name="customer", number=1, type=9, label=1)
    packed = base64.b64encode(file.SerializeToString()).decode()
    for number in (7771, 7772):
        gate.answers[f"/schemas/ids/{number}"] = json.dumps(answer).encode()
    gate.answers["/schemas/ids/7771?format=serialized"] = json.dumps(answer | {"schema": packed}).encode()
    compiled, text_only = (b"\x00" + number.to_bytes(4, "big") + data[5:] for number in (7771, 7772))
    reading = SchemaRegistry(gate.url, format="protobuf")

    assert read(data) == ProtoOrder(customer="ann")
    assert await decoded(reading, ProtoOrder | ProtoInvoice, compiled) == ProtoOrder(customer="ann")
    assert await decoded(reading, dict, compiled) == {"customer": "ann"}
    assert await decoded(reading, ProtoOrder, text_only) == ProtoOrder(customer="ann")
    with pytest.raises(ValueError, match=r"as \.proto source"):
        await decoded(reading, dict, text_only)


@pytest.mark.parametrize("behind", [b"", b"\x02", b"\x01", b"\xff" * 20, b"\x02\x01", b"\x80\x80\x04"], ids=bytes.hex)
async def test_invalid_message_indexes_are_refused(behind, gate):
    """Truncated, negative, excessive or unknown message indexes raise an error."""
    codec = SchemaRegistry(gate.url, format="protobuf", auto_register=True)
    data = await codec.encode_for("p", ProtoOrder(customer="ann"))

    with pytest.raises(ValueError, match="index"):
        await decoded(codec, ProtoOrder, data[:5] + behind)


async def test_references_to_other_schemas_are_resolved(registry):
    """References of an Avro or JSON schema to other subjects are resolved."""
    client = confluents_client(registry)
    money = '{"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}'
    bill = '{"type": "record", "name": "shop.Bill", "fields": [{"name": "sum", "type": "shop.Money"}]}'
    client.register_schema("money", Schema(money, "AVRO"))
    client.register_schema("bills-value", Schema(bill, "AVRO", [SchemaReference("shop.Money", "money", 1)]))
    client.register_schema("cents.json", Schema(json.dumps({"$schema": DRAFT, "type": "integer"}), "JSON"))
    sums = json.dumps({"$schema": DRAFT, "type": "object", "properties": {"sum": {"$ref": "cents.json"}}})
    client.register_schema("sums-value", Schema(sums, "JSON", [SchemaReference("cents.json", "cents.json", 1)]))
    avro, of_json = SchemaRegistry(registry), SchemaRegistry(registry, format="json")

    data = await avro.encode_for("bills", {"sum": {"cents": 5}})
    other = await of_json.encode_for("sums", {"sum": 5})

    assert await decoded(SchemaRegistry(registry), dict, data) == {"sum": {"cents": 5}}
    assert await decoded(SchemaRegistry(registry, format="json"), dict, other) == {"sum": 5}
    with pytest.raises(PublishError, match="is not of type 'integer'"):
        await of_json.encode_for("sums", {"sum": "five"})


async def test_json_is_validated_against_its_schema(registry):
    """A value that violates its JSON schema raises an error unless validate=False."""
    codec = SchemaRegistry(registry, format="json", schemas={"json-t": JSON}, auto_register=True)
    data = await codec.encode_for("json-t", {"customer": "ann", "total": 5})
    broken = data[:5] + b'{"customer": "ann"}'

    with pytest.raises(ValueError, match="'total' is a required property"):
        await decoded(codec, dict, broken)
    assert await decoded(SchemaRegistry(registry, format="json", validate=False), dict, broken) == {"customer": "ann"}


async def test_a_schema_of_another_format_or_with_rules_is_refused(gate):
    """A schema of a different format, or with rules, raises TypeError."""
    codec = SchemaRegistry(gate.url, format="json", schemas={"json-t": JSON}, auto_register=True)
    data = await codec.encode_for("json-t", {"customer": "ann", "total": 5})
    rule = {"name": "decrypt", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}
    gate.answers["/schemas/ids/7777"] = json.dumps({"schema": AVRO, "ruleSet": {"domainRules": [rule]}}).encode()

    with pytest.raises(TypeError, match="is JSON - use a codec with format='json'"):
        await decoded(SchemaRegistry(gate.url), dict, data)
    with pytest.raises(TypeError, match="has rules, which are not supported: decrypt"):
        await decoded(SchemaRegistry(gate.url), dict, b"\x00\x00\x00\x1e\x61" + data[5:])


async def test_a_schema_is_requested_once(gate):
    """One request per schema id serves all waiting records, also after a cancellation and for an unknown id."""
    writing = SchemaRegistry(gate.url, schemas={"avro-t": AVRO}, auto_register=True)
    data, codec = await writing.encode_for("avro-t", Order("ann", 5)), SchemaRegistry(gate.url)
    gate.asked.clear()
    gate.open.clear()
    first = asyncio.create_task(codec.fetch(data))
    await until(lambda: gate.asked)
    others = [asyncio.create_task(codec.fetch(data)) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    gate.open.set()
    await asyncio.gather(*others)
    unknown = b"\x00\x7f\xff\xff\xff"
    await codec.fetch(unknown)

    assert first.cancelled()
    assert not codec.lacks(data)
    assert not codec.lacks(unknown)
    assert len(gate.asked) <= 3
    with pytest.raises(LookupError, match="the registry has no schema 2147483647"):
        codec.decoder(Order)(unknown)


async def test_a_batch_may_contain_records_of_several_schemas(registry, new_topic):
    """``list[Order]`` receives records written with two schemas; a decoding error names the record's index."""
    topic, got = new_topic(), []
    first = await SchemaRegistry(registry, schemas={topic: AVRO}, auto_register=True).encode_for(topic, Order("a", 1))
    second = await SchemaRegistry(registry, schemas={topic: NEWER}, auto_register=True).encode_for(
        topic, NotedOrder("b", 2, "x")
    )

    async def store(orders: list[Order]) -> None:
        got.extend(orders)

    prepared = prepare(store, SchemaRegistry(registry), is_batch=True)
    records = [record_of(topic, n, data) for n, data in enumerate([first, second, first])]
    await prepared.call(records)

    assert got == [Order("a", 1), Order("b", 2), Order("a", 1)]
    assert prepared.direct_call is None
    with pytest.raises(DecodeError, match="index 1 of the batch"):
        await prepared.call([records[0], record_of(topic, 1, b"nothing")])


def record_of(topic, offset, value, key=None):
    return Record(topic, 0, offset, key, value, 0)


# ---- writing -------------------------------------------------------------------------------------------------------


async def test_no_schema_is_registered_without_auto_register(registry, new_topic):
    """Without auto_register an unregistered schema raises PublishError with advice; a registered one is used."""
    topic = new_topic()
    given, newest = SchemaRegistry(registry, schemas={topic: AVRO}), SchemaRegistry(registry)

    with pytest.raises(PublishError, match=f"not registered under '{topic}-value'.*auto_register=True"):
        await given.encode_for(topic, Order("ann", 5))
    with pytest.raises(PublishError, match=f"no schema is registered under '{topic}-value'"):
        await newest.encode_for(topic, Order("ann", 5))
    confluents_client(registry).register_schema(f"{topic}-value", Schema(AVRO, "AVRO"))
    data = await newest.encode_for(topic, Order("ann", 5))

    assert await given.encode_for(topic, Order("ann", 5)) == data
    assert await decoded(given, Order, data) == Order("ann", 5)


async def test_use_latest_version_encodes_with_the_newest_schema(registry, new_topic):
    """``use_latest_version`` takes precedence over ``schemas``; a value that does not fit raises PublishError."""
    topic, client = new_topic(), confluents_client(registry)
    client.register_schema(f"{topic}-value", Schema(AVRO, "AVRO"))
    codec = SchemaRegistry(registry, schemas={topic: AVRO}, use_latest_version=True)
    noted = NotedOrder("ann", 5, "fragile")

    with pytest.raises(PublishError, match=r"NotedOrder does not match the schema for .*note"):
        await codec.encode_for(topic, noted)
    client.register_schema(f"{topic}-value", Schema(NEWER, "AVRO"))

    assert await decoded(codec, NotedOrder, await codec.encode_for(topic, noted)) == noted


@pytest.mark.parametrize(
    ("form", "subject", "expected"),
    [
        ("avro", "topic", "{topic}-value"),
        ("avro", "record", "shop.Order"),
        ("avro", "topic_record", "{topic}-shop.Order"),
        ("json", "record", "Order"),
        ("protobuf", "topic_record", "{topic}-shop.Order"),
    ],
)
async def test_subjects_are_named_by_topic_record_name_or_both(form, subject, expected, registry, new_topic, tmp_path):  # noqa: PLR0917
    """The option `subject` names subjects by topic, record name or both; `schemas` accepts files."""
    topic, file = new_topic(), tmp_path / "order.schema"
    file.write_text(JSON if form == "json" else AVRO)
    codec = SchemaRegistry(registry, format=form, subject=subject, auto_register=True, schemas={topic: file})

    await codec.encode_for(topic, ProtoOrder(customer="ann") if form == "protobuf" else Order("ann", 5))

    assert expected.format(topic=topic) in confluents_client(registry).get_subjects()


async def test_a_schema_that_the_registry_refuses_raises_an_error(registry, new_topic):
    """A schema that the registry refuses as incompatible or invalid raises PublishError."""
    topic = new_topic()
    client = confluents_client(registry)
    client.register_schema(f"{topic}-value", Schema(AVRO, "AVRO"))
    client.set_compatibility(f"{topic}-value", "FULL")
    other = json.dumps(json.loads(AVRO) | {"fields": [{"name": "weight", "type": "int"}]})

    with pytest.raises(PublishError, match="rejects the schema"):
        await SchemaRegistry(registry, schemas={topic: other}, auto_register=True).encode_for(topic, {"weight": 1})
    with pytest.raises(PublishError, match="rejects the schema"):
        await SchemaRegistry(registry, schemas={topic: '{"type": "x"}'}, auto_register=True).encode_for(topic, {})


async def test_keys_are_encoded_with_a_schema_if_keys_is_true(registry, new_topic):
    """With ``keys=True`` keys have their own subject and decode to their annotation; otherwise they are text."""
    topic, got = new_topic(), []
    codec = SchemaRegistry(registry, schemas={topic: AVRO, f"{topic}-key": '"long"'}, keys=True, auto_register=True)
    key, value = await codec.encode_for(topic, 7, is_key=True), await codec.encode_for(topic, Order("ann", 5))

    async def handle(order: Order, key: Annotated[int, Key]) -> None:
        got.append((order, key))

    await prepare(handle, SchemaRegistry(registry, keys=True)).call(record_of(topic, 0, value, key))
    await prepare(handle, SchemaRegistry(registry)).call(record_of(topic, 0, value, b"8"))

    assert got == [(Order("ann", 5), 7), (Order("ann", 5), 8)]
    assert f"{topic}-key" in confluents_client(registry).get_subjects()


# ---- connection to the registry ------------------------------------------------------------------------------------


async def test_calls_to_a_slow_registry_raise_after_the_timeout(gate):
    """All calls that wait for a slow registry raise after timeout_ms; once the registry answers, calls succeed."""
    codec, data = SchemaRegistry(gate.url, timeout_ms=1_500), b"\x00\x7f\xff\xff\xff"
    gate.open.clear()
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*(codec.fetch(data) for _ in range(10)), return_exceptions=True)
    gate.open.set()
    await codec.fetch(data)

    assert {type(error) for error in errors} == {SchemaRegistryError}
    assert not codec.lacks(data)
    assert len(gate.asked) == 2


BASIC, BEARER = "Basic YW5uOmh1bnRlcjI=", "Bearer hunter2"


async def given_later():
    return "ann", "hunter2"


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        (("ann", "hunter2"), BASIC),
        ("hunter2", BEARER),
        (lambda: "hunter2", BEARER),
        (given_later, BASIC),
        (None, BASIC),
    ],
    ids=["user", "token", "function", "async function", "in the url"],
)
async def test_credentials_are_sent_to_the_registry_and_never_printed(auth, header, gate):
    """`auth` takes user and password, a token or a function; wrong credentials raise an error, and none are printed."""
    url = gate.url if auth is not None else gate.url.replace("http://", "http://ann:hunter2@")
    gate.authorization, data = header, b"\x00\x7f\xff\xff\xff"
    right = SchemaRegistry(url, auth=auth)
    await right.fetch(data)
    gate.authorization = "Basic other"
    with pytest.raises(SchemaRegistryError, match=r"denied access \(HTTP 401\) - check auth=") as refused:
        await SchemaRegistry(url, auth=auth).fetch(data)

    assert not right.lacks(data)
    shown = repr(right) + repr(vars(right)) + str(refused.value) + repr(refused.value.__cause__)
    assert "hunter2" not in shown
    assert "YW5uO" not in shown


async def test_an_error_of_auth_is_reported_without_its_text():
    """If ``auth`` raises, SchemaRegistryError has the exception's type but not its text, which may be secret."""

    def broken():
        raise ValueError("hunter2")

    with pytest.raises(
        SchemaRegistryError, match="the function auth= of the schema registry raised ValueError"
    ) as raised:
        await SchemaRegistry("http://127.0.0.1:9", auth=broken).fetch(b"\x00\x00\x00\x00\x01")

    assert "hunter2" not in str(raised.value)


async def test_invalid_credentials_of_a_function_are_reported_as_such():
    """Invalid credentials from the function ``auth`` raise SchemaRegistryError, whose text does not contain them."""
    with pytest.raises(
        SchemaRegistryError, match="auth= of the schema registry returned invalid credentials"
    ) as raised:
        await SchemaRegistry("http://127.0.0.1:9", auth=lambda: ("hunter:2", "x")).fetch(b"\x00\x00\x00\x00\x01")

    assert "hunter" not in str(raised.value)


async def test_ssl_cafile_makes_a_private_ca_trusted(registry, tmp_path):
    """With ``ssl_cafile`` a connection to a server with a private CA succeeds; without it the connection fails."""
    authority, context, data = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), b"\x00\x7f\xff\xff\xff"
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with Gate(registry, tls=context) as gate:
        codec = SchemaRegistry(gate.url, ssl_cafile=str(tmp_path / "ca.pem"))
        await codec.fetch(data)
        with pytest.raises(SchemaRegistryError, match="CERTIFICATE_VERIFY_FAILED"):
            await SchemaRegistry(gate.url).fetch(data)

    assert not codec.lacks(data)


async def test_the_next_address_is_used_if_one_does_not_answer(gate):
    """The codec falls back to the next registry address when one does not answer."""
    codec = SchemaRegistry(["http://127.0.0.1:9", gate.url])
    await codec.fetch(b"\x00\x7f\xff\xff\xff")

    assert not codec.lacks(b"\x00\x7f\xff\xff\xff")


@pytest.mark.parametrize("answer", [None, b"<html>default backend - 404</html>"], ids=["no such path", "a proxy"])
async def test_a_404_that_is_not_from_a_registry_is_an_outage(answer, gate, new_topic):
    """A 404 from a server that is not a registry, such as a proxy, is an outage and not a missing schema."""
    codec = SchemaRegistry(f"{gate.url}/elsewhere")
    if answer is not None:
        gate.refusal = 404, answer
    with pytest.raises(SchemaRegistryError, match=r"HTTP 404.* check the url"):
        await codec.fetch(b"\x00\x00\x00\x00\x01")
    with pytest.raises(SchemaRegistryError, match="HTTP 404"):
        await codec.encode_for(new_topic(), {"customer": "ann"})

    assert codec.lacks(b"\x00\x00\x00\x00\x01")


def test_an_impossible_schema_id_is_not_requested():
    """Schema ids outside the positive 32-bit range raise an error without a request."""
    codec, data = SchemaRegistry("http://127.0.0.1:9"), b"\x00\xff\xff\xff\xffrest"

    assert not codec.lacks(data)
    with pytest.raises(ValueError, match="wire format"):
        codec.decoder(Order)(data)


# ---- invalid options and values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("localhost:8081", {}, "url must begin with http"),
        ("http://", {}, "url must contain a host"),
        ([], {}, "url is empty"),
        ("http://x", {"format": "xml"}, "format must be one of 'avro', 'json', 'protobuf', not 'xml'"),
        ("http://x", {"subject": "table"}, "must be one of 'topic', 'record', 'topic_record'"),
        ("http://x", {"timeout_ms": 0}, "timeout_ms must be a positive integer, not 0"),
        ("http://x", {"auth": ("a:b", "hunter2")}, "the user must not contain ':'"),
        ("http://x", {"auth": 5}, "auth must be"),
        ("http://u:hunter2@x", {"auth": "hunter2"}, "credentials are in url and in auth="),
        ("http://x", {"schemas": {"t": "/no/such/file"}}, r"schemas\['t'\] is neither"),
        ("http://x", {"use_latest_version": True, "auto_register": True}, "cannot both be True"),
    ],
)
def test_invalid_options_are_refused_at_once(url, options, message):
    """Invalid options raise ConfigurationError that names the option and contains no secret."""
    with pytest.raises(ConfigurationError, match=message) as refused:
        SchemaRegistry(url, **options)

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("annotation", [dict[str, Consumer], ProtoOrder | dict, complex])
def test_a_type_that_no_format_decodes_is_refused_at_the_start(annotation):
    """An annotation that no format can decode raises ConfigurationError before the first record."""

    async def handle(order): ...

    handle.__annotations__["order"] = annotation

    with pytest.raises(ConfigurationError, match="cannot have the type"):
        prepare(handle, SchemaRegistry("http://127.0.0.1:9", format="protobuf"))


def test_a_value_without_a_topic_has_no_schema():
    """encode() without a topic accepts bytes only."""
    codec = SchemaRegistry("http://127.0.0.1:9")

    assert codec.encode(b"raw") == b"raw"
    with pytest.raises(TypeError, match="depends on the topic"):
        codec.encode({"customer": "ann"})


@pytest.mark.parametrize("absent", ["confluent_kafka.schema_registry", "fastavro"])
def test_a_missing_extra_is_reported_with_the_install_command(absent, monkeypatch):
    """Without one of its packages, SchemaRegistry raises ConfigurationError with the pip command."""
    monkeypatch.setitem(sys.modules, absent, None)

    with pytest.raises(ConfigurationError, match=r"pip install '\.\[schema-registry\]' in a clone"):
        SchemaRegistry("http://localhost:8081")


def test_the_schema_registry_is_imported_on_use_only():
    """Importing tailrace, App and SchemaRegistry does not import confluent-kafka, fastavro, jsonschema or protobuf."""
    asked = "import json, sys, tailrace; tailrace.App, tailrace.SchemaRegistry; print(json.dumps([*sys.modules]))"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)

    assert not {"confluent_kafka", "fastavro", "jsonschema", "google.protobuf"} & set(json.loads(ran.stdout))
