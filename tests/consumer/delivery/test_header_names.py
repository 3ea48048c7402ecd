"""Records whose headers have names that are not UTF-8, on a broker, which accepts them."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.batches import record_batch
from tailrace.installation import COMPILED
from tests.support.protocol.built_batches import SentRecord, with_header_name

EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.mark.parametrize(
    "is_compiled",
    [pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="there is no compiled module")), False],
)
async def test_a_record_with_such_a_header_is_delivered(new_topic, new_consumer, witness, monkeypatch, is_compiled):
    """A record whose header has a name in Latin-1 is delivered as any other, as a record and in columns."""
    if not is_compiled:
        monkeypatch.setattr(record_batch, "_BatchDecoder", None)
    topic = new_topic()
    witness.produce_batch(topic, with_header_name(b"caf\xe9", SentRecord(b"k", b"1", headers=(("XXXX", b"x"),))))
    witness.produce(topic, [b"2"])

    async with asyncio.timeout(30):
        async with new_consumer(topic, **EARLIEST) as consumer:
            first, second = await consumer.getone(), await consumer.getone()
        async with new_consumer(topic, **EARLIEST) as consumer:
            table = await anext(aiter(consumer.arrow_batches(max_records=1)))

    assert (first.value, list(first.headers), second.value) == (b"1", [("caf\N{REPLACEMENT CHARACTER}", b"x")], b"2")
    assert table.column("headers").to_pylist() == [[{"key": "caf\N{REPLACEMENT CHARACTER}", "value": b"x"}]]
