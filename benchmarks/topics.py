"""Topics with records for consumers to read.

A few record batches are encoded once and sent repeatedly, so that gigabytes are written within seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from typing import NamedTuple

from aiokafka import AIOKafkaProducer

from tailrace.cli.output import count
from tailrace.cli.screen import Screen, megabytes
from tailrace.embedded.cluster import EmbeddedCluster

BATCH_BYTES = 100_000
"""Approximate size of a record batch before compression."""

PARTITIONS = 4

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_BATCHES, _KEYS, _IN_FLIGHT = 8, 1_000, 64
_OVERHEAD = 15
"""Approximate size of a record without its value and headers, in bytes."""


class TopicSettings(NamedTuple):
    """Settings of a topic and its records."""

    payload: int = 100
    """Size of each value, in bytes."""
    codec: str = "none"
    headers: int = 0
    """Number of headers of each record."""
    partitions: int = PARTITIONS
    values: str = "text"
    """Content of the values: ``text`` or ``json``."""
    batch: int = 0
    """Number of records in each batch; 0 for batches of about ``BATCH_BYTES``."""

    @property
    def record_bytes(self) -> int:
        """Approximate size of a record before compression, in bytes."""
        return self.payload + _OVERHEAD + sum(len(name) + len(value) for name, value in _headers(self.headers))


def fill(screen: Screen, server: EmbeddedCluster, settings: TopicSettings, records: int) -> tuple[str, int]:
    """Create a topic, write at least ``records`` records to it, and return its name and its number of records."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, settings.partitions, replication_factor=1)
    began = time.monotonic()
    with screen.progress() as progress:
        bar = progress.add_task("fill", total=records, note=settings.codec)
        written = asyncio.run(
            _send(server.bootstrap_servers, topic, settings, records, lambda done: progress.update(bar, completed=done))
        )
    size = megabytes(written * settings.record_bytes)
    screen.line(
        "topic",
        f"{count(written)} records of {settings.payload} B, {settings.partitions} partitions, {settings.codec},"
        f" {size}, in {time.monotonic() - began:.1f} s",
    )
    return topic, written


async def _send(bootstrap_servers: str, topic: str, settings: TopicSettings, records: int, on_progress) -> int:
    records_per_batch = settings.batch or max(1, BATCH_BYTES // settings.record_bytes)
    content, headers = random.Random(1), _headers(settings.headers)
    codec = None if settings.codec == "none" else settings.codec
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers, acks=1, compression_type=codec, max_batch_size=4 * BATCH_BYTES
    ) as producer:
        batches = []
        for _ in range(_BATCHES):
            batch = producer.create_batch()
            for _ in range(records_per_batch):
                key, value = b"k%d" % content.randrange(_KEYS), _value(content, settings)
                if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                    raise AssertionError("the batch is full")
            batch.close()
            batches.append(batch)
        needed = -(-records // records_per_batch)
        # Send the same number of batches to each partition.
        needed += -needed % settings.partitions
        for first in range(0, needed, _IN_FLIGHT):
            numbers = range(first, min(first + _IN_FLIGHT, needed))
            sent = [
                await producer.send_batch(batches[number % _BATCHES], topic, partition=number % settings.partitions)
                for number in numbers
            ]
            await asyncio.gather(*sent)
            on_progress((first + len(sent)) * records_per_batch)
    return needed * records_per_batch


def _headers(number: int) -> list[tuple[str, bytes]]:
    return [(f"header-{n}", b"value-%d" % n) for n in range(number)]


def _value(content: random.Random, settings: TopicSettings) -> bytes:
    if settings.values == "json":
        order = {"customer": f"c{content.randrange(10**9):09}", "item": content.randrange(10**6), "total": 99.5}
        padding = settings.payload - len(json.dumps(order)) - len(', "note": ""')
        return json.dumps(order | {"note": "n" * padding}).encode()
    words = b" ".join(content.choices(_WORDS, k=settings.payload // 4 + 1))
    return words[: settings.payload]


_WORDS = [bytes(random.Random(n).choices(b"abcdefghijklmnopqrstuvwxyz", k=3 + n % 8)) for n in range(1_000)]
"""Words that compress about as well as text."""
