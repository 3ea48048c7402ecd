"""Records may use only schemas of their topic's subject; with a real registry and broker."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from tailrace import App, Consumer, DecodeError, Key, Record, Retry, SchemaRegistry, SchemaRegistryError
from tailrace.app.declare.prepared_handler import prepare
from tailrace.codecs import schema_decoders as subjects
from tailrace.observe.events import RecordDeadLettered
from tests.support.consumer_group import until

pytestmark = [
    pytest.mark.timeout(400),  # the registry is downloaded at the first run
    pytest.mark.xdist_group("schema registry"),  # avoids a second download
]
QUICK = Retry(attempts=2, backoff_ms=1, max_backoff_ms=50)


class Order(msgspec.Struct):
    customer: str
    total: int


def avro(name):
    """Return an Avro schema of a given name; the bytes of its values do not depend on the name."""
    fields = [{"name": "customer", "type": "string"}, {"name": "total", "type": "long"}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def value(schema_id, total):
    return b"\x00" + schema_id.to_bytes(4, "big") + b"\x06ann" + bytes([2 * total])


def record_of(topic, value, key=None):
    return Record(topic, 0, 0, key, value, 0)


@pytest.fixture
def client(registry):
    with SchemaRegistryClient({"url": registry}) as client:
        yield client


@pytest.fixture
def register(client):
    """Register an Avro schema under a subject and return its id."""

    def register(subject, text):
        client.set_compatibility(subject, "NONE")
        return client.register_schema(subject, Schema(text, "AVRO"))

    return register


async def read_all(kafka_server, topic, count):
    async with Consumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(30):
            return [await consumer.getone() for _ in range(count)]


async def read(codec, topic, data):
    """Decode a value as for a handler of the topic."""
    got = []

    async def handle(order: Order) -> None:
        got.append(order)

    await prepare(handle, codec).call(record_of(topic, data))
    return got[0]


# ---- on the broker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["single", "batch"])
async def test_a_schema_of_another_subject_is_a_dead_letter(  # noqa: PLR0917 - fixtures
    kind, registry, register, new_topic, witness, kafka_server, group, recorder
):
    """A record with a schema id of another topic's subject is dead-lettered; all other records are handled."""
    topic, other = new_topic(), new_topic()
    dead = f"{topic}.{group}.dead"
    kafka_server.create_topic(dead)
    own, newer = register(f"{topic}-value", avro("Order")), register(f"{topic}-value", avro("NewOrder"))
    foreign = register(f"{other}-value", avro("Foreign"))
    witness.produce(topic, [value(own, 1), value(foreign, 2), value(newer, 3), value(foreign, 4), value(own, 5)])
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        retry=QUICK,
        codec=SchemaRegistry(registry),
        dead_letter="{topic}.{group}.dead",
        hooks=[recorder],
    )
    got = []

    async def handle(order: Order) -> None:
        got.append(order.total)

    async def handle_batch(orders: list[Order]) -> None:
        got.extend(order.total for order in orders)

    if kind == "batch":
        app.batch_handler(topic)(handle_batch)
    else:
        app.handler(topic)(handle)
    async with app:
        await until(lambda: len(got) + len(recorder.of(RecordDeadLettered)) == 5)

    letters = await read_all(kafka_server, dead, 2)
    assert got == [1, 3, 5]
    assert [letter.value for letter in letters] == [value(foreign, 2), value(foreign, 4)]
    headers = dict(letters[0].headers)
    assert headers["tailrace-error-type"].rpartition(b".")[2] == b"DecodeError"
    assert f"schema {foreign} is not a version of '{topic}-value'" in headers["tailrace-error-message"].decode()
    assert await witness.committed(group, topic, 1) == {0: 5}


async def test_a_topic_without_a_subject_takes_any_schema(  # noqa: PLR0917 - fixtures
    registry, register, new_topic, witness, kafka_server, group
):
    """A topic without a subject accepts any schema, as after mirroring."""
    topic, origin = new_topic(), new_topic()
    schema_id = register(f"{origin}-value", avro("Mirrored"))
    witness.produce(topic, [value(schema_id, n) for n in range(5)])
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, retry=QUICK, codec=SchemaRegistry(registry)
    )
    got = []

    @app.handler(topic)
    async def handle(order: Order) -> None:
        got.append(order.total)

    async with app:
        await until(lambda: len(got) == 5)

    assert got == [0, 1, 2, 3, 4]


async def test_a_later_schema_version_is_accepted_without_a_restart(  # noqa: PLR0917 - fixtures
    registry, register, new_topic, witness, kafka_server, group
):
    """A schema version registered while the app runs is accepted without a restart."""
    topic = new_topic()
    witness.produce(topic, [value(register(f"{topic}-value", avro("Order")), 1)])
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, retry=QUICK, codec=SchemaRegistry(registry)
    )
    got = []

    @app.handler(topic)
    async def handle(order: Order) -> None:
        got.append(order.total)

    async with app:
        await until(lambda: got == [1])
        witness.produce(topic, [value(register(f"{topic}-value", avro("Later")), 2)])
        await until(lambda: got == [1, 2])


# ---- requests and caches -------------------------------------------------------------------------------------------


async def test_a_schema_id_is_checked_once_per_topic(gate, register, new_topic):
    """Each schema id of a topic is requested once; a refused id is cached for some seconds."""
    topic = new_topic()
    own, foreign = register(f"{topic}-value", avro("Order")), register(f"{new_topic()}-value", avro("Foreign"))
    codec = SchemaRegistry(gate.url)
    gate.asked.clear()
    for _ in range(5):
        assert await read(codec, topic, value(own, 1)) == Order("ann", 1)
        with pytest.raises(DecodeError, match="is not a version of"):
            await read(codec, topic, value(foreign, 1))

    assert sorted(gate.asked) == sorted(
        [
            f"/schemas/ids/{own}",
            f"/schemas/ids/{own}/versions",
            f"/schemas/ids/{foreign}",
            f"/schemas/ids/{foreign}/versions",
            f"/subjects/{topic}-value/versions/latest",
        ]
    )


async def test_a_refused_schema_id_is_checked_again(registry, register, new_topic, monkeypatch):
    """A refused id is accepted some seconds after its schema was registered for the topic."""
    monkeypatch.setattr(subjects, "_REFUSED_FOR_S", 0.2)
    topic = new_topic()
    register(f"{topic}-value", avro("Order"))
    foreign = register(f"{new_topic()}-value", avro("Shared"))
    codec = SchemaRegistry(registry)
    with pytest.raises(DecodeError, match="is not a version of"):
        await read(codec, topic, value(foreign, 1))
    assert register(f"{topic}-value", avro("Shared")) == foreign
    await until(lambda: codec.reader(is_key=False).lacks(topic, value(foreign, 1)))

    assert await read(codec, topic, value(foreign, 1)) == Order("ann", 1)


async def test_accepted_ids_decode_while_the_registry_is_down(gate, register, new_topic):
    """While the registry is down, accepted ids still decode, and other ids raise SchemaRegistryError."""
    topic, other = new_topic(), new_topic()
    shared = register(f"{topic}-value", avro("Shared"))
    assert register(f"{other}-value", avro("Shared")) == shared
    codec = SchemaRegistry(gate.url)
    await read(codec, topic, value(shared, 1))
    gate.stop()
    with pytest.raises(SchemaRegistryError):
        await read(codec, other, value(shared, 1))
    assert await read(codec, topic, value(shared, 2)) == Order("ann", 2)
    gate.start()

    assert await read(codec, other, value(shared, 3)) == Order("ann", 3)


async def test_caches_of_ids_and_topics_are_bounded(gate, register, new_topic, monkeypatch):
    """The caches of ids and topics are bounded, and an id unknown to the registry takes a single request."""
    monkeypatch.setattr(subjects, "_MAX_REFUSED", 3)
    monkeypatch.setattr(subjects, "_MAX_TOPICS", 3)
    topic, foreign = new_topic(), [register(f"{new_topic()}-value", avro(f"Foreign{n}")) for n in range(8)]
    own = register(f"{topic}-value", avro("Order"))
    codec = SchemaRegistry(gate.url)
    reader = codec._values
    for schema_id in foreign:
        with pytest.raises(DecodeError, match="is not a version of"):
            await read(codec, topic, value(schema_id, 1))
    gate.asked.clear()
    for schema_id in range(2**31 - 5, 2**31):
        with pytest.raises(DecodeError, match="the registry has no schema"):
            await read(codec, topic, value(schema_id, 1))
    assert gate.asked == [f"/schemas/ids/{schema_id}" for schema_id in range(2**31 - 5, 2**31)]
    for _ in range(8):
        assert await read(codec, new_topic(), value(own, 1)) == Order("ann", 1)

    assert len(reader._refused) == 3
    assert len(reader._accepted) == 3


# ---- subjects ------------------------------------------------------------------------------------------------------


async def test_a_key_with_a_schema_of_values_is_refused(registry, client, register, new_topic):
    """A key with the id of a schema of the topic's values is refused."""
    topic, got = new_topic(), []
    of_value = register(f"{topic}-value", avro("Order"))
    of_key = client.register_schema(f"{topic}-key", Schema('"long"', "AVRO"))
    alike = client.register_schema(f"{new_topic()}-value", Schema('{"type": "long", "of": "another"}', "AVRO"))

    async def handle(order: Order, key: Annotated[int, Key]) -> None:
        got.append(key)

    prepared = prepare(handle, SchemaRegistry(registry, keys=True))
    await prepared.call(record_of(topic, value(of_value, 1), b"\x00" + of_key.to_bytes(4, "big") + b"\x0e"))
    with pytest.raises(
        DecodeError, match=f"the key cannot be decoded as int: schema {alike} is not a version of '{topic}-key'"
    ):
        await prepared.call(record_of(topic, value(of_value, 1), b"\x00" + alike.to_bytes(4, "big") + b"\x0e"))

    assert got == [7]


@pytest.mark.parametrize("strategy", ["record", "topic_record"])
async def test_a_record_name_uses_only_schemas_of_its_subject(strategy, registry, register, new_topic):
    """With subjects by record name, a schema from a different subject is refused if its name has a subject."""
    topic = new_topic()
    name = f"Order{topic.replace('-', '_').replace('.', '_')}"
    subject = name if strategy == "record" else f"{topic}-{name}"
    own = register(subject, avro(name))
    forged = register(f"{new_topic()}-value", json.dumps(json.loads(avro(name)) | {"doc": "forged"}))
    codec = SchemaRegistry(registry, subject=strategy)

    assert await read(codec, topic, value(own, 1)) == Order("ann", 1)
    with pytest.raises(DecodeError, match=f"schema {forged} is not a version of"):
        await read(codec, topic, value(forged, 1))
    unnamed = register(f"{new_topic()}-value", avro("Unnamed"))
    assert await read(codec, topic, value(unnamed, 1)) == Order("ann", 1)


async def test_records_outlive_the_deletion_of_their_version(registry, client, register, new_topic):
    """A record of a deleted schema version is decoded."""
    topic = new_topic()
    old = register(f"{topic}-value", avro("Old"))
    register(f"{topic}-value", avro("New"))
    client.delete_version(f"{topic}-value", 1)

    assert await read(SchemaRegistry(registry), topic, value(old, 1)) == Order("ann", 1)


async def test_subjects_with_a_context_and_aliases_are_accepted(gate, register, new_topic):
    """Subjects with a context (``:.context:name``) and subject aliases are accepted."""
    topic, alias, foreign = new_topic(), new_topic(), new_topic()
    own = register(f"{topic}-value", avro("Order"))
    pairs = json.dumps([{"subject": f":.shop:{topic}-value", "version": 1}]).encode()
    gate.answers[f"/schemas/ids/{own}/versions"] = pairs
    for name, found, schema_id in ((alias, f":.shop:{topic}-value", own + 1), (foreign, f"{foreign}-value", own + 1)):
        latest = {"subject": found, "version": 2, "id": schema_id, "schema": avro("New")}
        gate.answers[f"/subjects/{name}-value/versions/latest"] = json.dumps(latest).encode()
    codec = SchemaRegistry(gate.url)

    assert await read(codec, topic, value(own, 1)) == Order("ann", 1)
    assert await read(codec, alias, value(own, 1)) == Order("ann", 1)
    with pytest.raises(DecodeError, match="is not a version of"):
        await read(codec, foreign, value(own, 1))


async def test_an_app_reads_its_own_records_without_a_request(gate, new_topic):
    """A schema id that the app itself has encoded with is decoded without a request."""
    topic = new_topic()
    codec = SchemaRegistry(gate.url, schemas={topic: avro("Order")}, auto_register=True)
    data = await codec.encode_for(topic, Order("ann", 5))
    gate.asked.clear()

    assert await read(codec, topic, data) == Order("ann", 5)
    assert gate.asked == []
