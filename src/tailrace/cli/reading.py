"""Reading of selected partitions of a topic without a group, from given offsets, up to given end offsets if any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from tailrace.errors import ConsumerTimeoutError

if TYPE_CHECKING:
    from tailrace.consumer.consumer import Consumer
    from tailrace.records import Record, TopicPartition

__all__ = ["read_batches"]

_POLL_TIMEOUT_MS = 500
_STALL_S = 60.0
"""Maximum time to wait for a record while partitions have unread offsets."""


async def read_batches(
    consumer: Consumer, starts: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int] | None
) -> AsyncIterator[list[Record]]:
    """Yield records of the partitions in ``starts`` until all records before ``ends`` are read.

    A list is empty if no record arrived for half a second.

    Args:
        consumer: started consumer without a group.
        starts: offset of each partition at which to start; None for the consumer's position.
        ends: end offset of each partition, exclusive; None to read without end.

    Raises:
        ConsumerTimeoutError: no record arrived for a minute, although the log has unread records.
    """
    import asyncio

    if others := consumer.assignment() - starts.keys():
        consumer.pause(*others)
    for partition, offset in starts.items():
        if offset is not None:
            await consumer.seek(partition, offset)
    loop = asyncio.get_running_loop()
    last_record_at, unread = loop.time(), ends
    while True:
        if unread is not None:
            unread = {one: end for one, end in unread.items() if await consumer.position(one) < end}
            if not unread:
                return
        records = await consumer.getmany(timeout_ms=_POLL_TIMEOUT_MS)
        if records:
            last_record_at = loop.time()
        elif unread is not None and loop.time() - last_record_at > _STALL_S:
            raise ConsumerTimeoutError(
                f"no record of {', '.join(map(str, sorted(unread)))} arrived for {_STALL_S:.0f} s, although the log has"
                " more records - check that the leaders of these partitions run"
            )
        yield records if ends is None else [one for one in records if one.offset < ends.get(one.topic_partition, 0)]
