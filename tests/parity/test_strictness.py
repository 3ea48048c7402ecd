"""What a log may not have, for those who say so."""

from __future__ import annotations

import pytest

from penstock import RecordTooLargeError, TopicPartition

EARLIEST = {"auto_offset_reset": "earliest"}


async def test_a_batch_may_be_too_large(kafka):
    """With max_batch_bytes the error comes again until somebody seeks past it; without, all are handed out."""
    topic = kafka.topic()
    for size in (10, 20_000, 10):
        kafka.produce(topic, [bytes(size)])

    async with kafka.consumer(topic, max_batch_bytes=8_192, **EARLIEST) as consumer:
        assert (await consumer.getone()).offset == 0
        for _ in range(2):
            with pytest.raises(RecordTooLargeError, match="max_batch_bytes=8192"):
                await consumer.getone()
        place = TopicPartition(topic, 0)
        stands_at = await consumer.position(place)
        await consumer.seek(place, 2)
        last = await consumer.getone()
    async with kafka.consumer(topic, max_partition_fetch_bytes=4_096, **EARLIEST) as consumer:
        sizes = [len((await consumer.getone()).value) for _ in range(3)]

    assert (stands_at, last.offset) == (1, 2)
    assert sizes == [10, 20_000, 10]
