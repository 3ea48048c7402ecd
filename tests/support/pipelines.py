"""Apps that forward records, and checks that each record is forwarded once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace import App, Message, Record
from tailrace.testing import KafkaServer
from tests.support.committed_records import CommittedRecords
from tests.support.witness import Witness

# Short, so that a lost request is retried soon.
IMPATIENT: dict[str, Any] = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "request_timeout_ms": 2_000}

# Broker with short delays for members and transactions.
QUICK_BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 4_000,
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
    """Add a handler that forwards records to an app, and return the list of the numbers that it handles."""
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


async def offsets_now(ledger: CommittedRecords, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the committed offsets of a group by partition."""
    with _asking(ledger, group) as committed:
        return await committed(topic, partitions)


async def until_committed(ledger: CommittedRecords, group: str, topic: str, count: int, partitions: int = 1) -> None:
    """Wait until the group has committed this number of records, in a topic without control records."""
    with _asking(ledger, group) as committed:
        async with asyncio.timeout(30):
            while sum((await committed(topic, partitions)).values()) < count:  # noqa: ASYNC110 - the broker has no event for it
                await asyncio.sleep(0.02)


@contextmanager
def _asking(ledger: CommittedRecords, group: str) -> Iterator[Callable[[str, int], Awaitable[dict[int, int]]]]:
    """Query committed offsets with a consumer that never joins.

    The admin client of librdkafka may crash while the coordinator is loading.
    """
    options = {"bootstrap.servers": ledger.server.bootstrap_servers, "isolation.level": "read_uncommitted"}
    asking = Consumer({**options, "group.id": group}, logger=logging.getLogger("librdkafka"))

    def ask(topic: str, partitions: int) -> dict[int, int]:
        try:
            found = asking.committed([TopicPartition(topic, one) for one in range(partitions)], 5)
        except KafkaException:
            # The broker is down at the moment.
            return {}
        return {one.partition: one.offset for one in found if one.offset >= 0}

    async def committed(topic: str, partitions: int) -> dict[int, int]:
        return await asyncio.to_thread(ask, topic, partitions)

    try:
        yield committed
    finally:
        asking.close()


def direct(server: KafkaServer) -> Any:
    """Return the address of the broker without its proxy."""
    return SimpleNamespace(
        bootstrap_servers=f"127.0.0.1:{server.node.ports.internal}",
        client_options=server.client_options,
        create_topic=server.create_topic,
    )


async def check(ledger: CommittedRecords, topic: str, numbers: Iterable[int]) -> None:
    """Check that each number occurs once, and that those of each key are in order."""
    by_key = defaultdict(list)
    for one in await ledger.committed(topic):
        by_key[one.key()].append(int(one.value()))

    assert {key: sorted(found) for key, found in by_key.items()} == by_key
    assert Counter(n for found in by_key.values() for n in found) == Counter(numbers)
