"""Apps that pass records on, and whether what came out is what went in, once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ledger import Ledger
from witness import Witness

from penstock import App, Message, Record

# So that what is lost is missed soon.
IMPATIENT: dict[str, Any] = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "request_timeout_ms": 2_000}

# Of a broker whose members and transactions do not keep a test waiting.
QUICK_BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.assignment.interval.ms": 0,
}


def passing_on(
    app: App,
    source: str,
    target: str,
    *,
    order_by: Any = "key",
    first: Callable[[Record], Awaitable[None]] | None = None,
) -> list[int]:
    """Has an app pass records on; gives the numbers that its handler saw, as often as it did."""
    seen: list[int] = []

    @app.handler(source, publish=target, order_by=order_by, concurrency=16)
    async def pass_on(record: Record) -> Message:
        seen.append(int(record.value))
        if first is not None:
            await first(record)
        return Message(record.value, key=record.key)

    return seen


def fill(witness: Witness, topic: str, numbers: range, keys: int = 20) -> None:
    witness.produce(topic, (b"%d" % n for n in numbers), keys=(b"k%d" % (n % keys) for n in numbers))


async def offsets_now(ledger: Ledger, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What the group has committed so far, by partition.

    Not asked for offsets that are stable: librdkafka ends the process when it is told that they are not.
    """
    found = await ledger.group_offsets_now(group, topic, range(partitions))
    return {one.partition: one.offset for one in found if one.offset >= 0}


async def until_committed(ledger: Ledger, group: str, topic: str, count: int, partitions: int = 1) -> None:
    """Wait until the group has committed so many records of a topic, which has nothing else in it."""
    async with asyncio.timeout(30):
        while True:
            if sum((await offsets_now(ledger, group, topic, partitions)).values()) >= count:
                return
            await asyncio.sleep(0.02)


async def check(ledger: Ledger, topic: str, numbers: Iterable[int]) -> None:
    """Each number is there once, and those of each key in order."""
    by_key = defaultdict(list)
    for one in await ledger.committed(topic):
        by_key[one.key()].append(int(one.value()))

    assert {key: sorted(found) for key, found in by_key.items()} == by_key
    assert Counter(n for found in by_key.values() for n in found) == Counter(numbers)


def with_code(code: int) -> Callable[[Any], Any]:
    """Edits an answer: that code, of all that it is about."""

    def edit(answer: Any) -> Any:
        if not hasattr(answer, "partitions"):
            return dataclasses.replace(answer, error_code=code)
        refused = tuple(dataclasses.replace(one, error_code=code) for one in answer.partitions)
        return dataclasses.replace(answer, partitions=refused)

    return edit
