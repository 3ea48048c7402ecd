"""Deserializers of the user, records that they cannot decode, and missing offsets."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from tailrace import App, ConfigurationError, DecodeError, OffsetGapError, TopicPartition
from tailrace.observe.events import RecordUnreadable
from tests.support.event_recorder import EventRecorder


@pytest.fixture
def orders(new_topic, witness) -> str:
    """Create a topic of ten records, the sixth of which is not JSON."""
    topic = new_topic()
    values = [json.dumps({"n": n}).encode() if n != 5 else b"{broken" for n in range(10)]
    witness.produce(topic, values, keys=[b"%d" % n for n in range(10)])
    return topic


async def test_deserializers_apply_to_keys_and_values(orders, new_consumer, witness, group):
    """Keys and values are decoded by key_deserializer and value_deserializer, which are not called for null."""
    witness.produce(orders, [None])
    options = {"key_deserializer": int, "value_deserializer": json.loads, "on_deserialize_error": "skip"}

    async with new_consumer(orders, group_id=group, **options) as consumer:
        records = [await consumer.getone() for _ in range(10)]

    assert [(one.key, one.value) for one in records[:5]] == [(n, {"n": n}) for n in range(5)]
    assert (records[-1].key, records[-1].value, records[-1].offset) == (None, None, 10)


async def test_an_undecodable_record_raises_until_a_seek_past_it(orders, new_consumer, witness, group):
    """A record that cannot be decoded raises DecodeError at each poll and is not committed until a seek past it."""
    place = TopicPartition(orders, 0)

    async with new_consumer(orders, group_id=group, value_deserializer=json.loads) as consumer:
        assert [(await consumer.getone()).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(DecodeError, match="at offset 5: JSONDecodeError"):
                await consumer.getone()
        assert await consumer.position(place) == 5
        await consumer.commit()
        assert await witness.committed(group, orders, 1) == {0: 5}
        await consumer.seek(place, 6)
        batch = await consumer.getmany(min_records=4)

    assert [record.offset for record in batch] == [6, 7, 8, 9]


async def test_an_undecodable_record_is_skipped_on_request(orders, new_consumer, witness, group):
    """With on_deserialize_error="skip", a record that cannot be decoded is committed unread, and an event names it."""
    events = EventRecorder()
    options = {"value_deserializer": json.loads, "on_deserialize_error": "skip", "hooks": [events]}

    async with new_consumer(orders, group_id=group, **options) as consumer:
        got = [(await consumer.getone()).offset for _ in range(9)]
        await consumer.commit()

    assert got == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [event.offset for event in events.of(RecordUnreadable)] == [5]
    assert await witness.committed(group, orders, 1) == {0: 10}


async def test_an_app_refuses_deserializers(kafka_server, orders, group):
    """An App with value_deserializer does not start, and the error advises to set codec=."""
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, value_deserializer=json.loads)

    @app.handler(orders)
    async def handle(order: dict) -> None: ...

    with pytest.raises(ConfigurationError, match="set codec="):
        await app.start()


async def test_offset_gaps_raise_if_not_allowed(new_topic, new_consumer, kafka_server, group):
    """With allow_offset_gaps=False, an offset gap raises OffsetGapError at each poll until a seek past it."""
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    producer.init_transactions(20)
    for value in (b"first", b"second"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(20)
    options = {"auto_offset_reset": "earliest"}

    async with new_consumer(topic, **options) as consumer:
        lenient = [(await consumer.getone()).offset for _ in range(2)]
    async with new_consumer(topic, allow_offset_gaps=False, **options) as consumer:
        strict = [(await consumer.getone()).offset]
        for _ in range(2):
            with pytest.raises(OffsetGapError) as caught:
                await consumer.getone(timeout_ms=30_000)
        await consumer.seek(caught.value.partition, caught.value.next_offset)
        strict.append((await consumer.getone()).offset)

    assert (lenient, strict) == ([0, 2], [0, 2])
    assert (caught.value.partition, caught.value.offset, caught.value.next_offset) == (TopicPartition(topic, 0), 1, 2)
