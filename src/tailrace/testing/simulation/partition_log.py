"""Log of one partition: batches, leader epochs, high watermark, and the sequence numbers of producers.

No clock and no IO. One log stands for all replicas: records above the high watermark are those that not all
in-sync replicas have, and an election may lose them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.batches.record_batch import split
from tailrace.error_codes import ErrorCode

__all__ = ["KnownProducer", "PartitionLog", "StoredBatch"]

_HEAD = struct.Struct(">q4xi7xi8xqqhii")
"""Base offset, leader epoch, last offset minus base offset, maximum timestamp, producer id, epoch, sequence
number, number of records."""
_OFFSET, _EPOCH, _EPOCH_AT = struct.Struct(">q"), struct.Struct(">i"), 12
_KEPT_BATCHES = 5
"""Number of batches of a producer whose repetition is recognized."""


class StoredBatch(NamedTuple):
    """Stored record batch."""

    base: int
    end: int
    """Offset after the last record."""
    epoch: int
    content: bytes
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    sequence: int


@dataclass
class KnownProducer:
    """State of a producer in a log."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT_BATCHES))
    """First and last sequence number, and base offset, of the latest batches."""


class PartitionLog:
    """Log of one partition.

    Attributes:
        leader: broker id; -1 without a leader.
        epoch: leader epoch.
        start: offset of the first record; retention and DeleteRecords raise it.
        high_watermark: offset up to which consumers read.
        batches: stored batches in order.
    """

    def __init__(self, topic: str, number: int, replicas: tuple[int, ...]) -> None:
        self.topic, self.number, self.replicas = topic, number, replicas
        self.leader, self.epoch = replicas[0], 0
        self.isr = list(replicas)
        self.start = self.high_watermark = 0
        self.batches: list[StoredBatch] = []
        self.producers: dict[int, KnownProducer] = {}
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        """Leader epochs, and the offset at which each began."""

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.number} {self.start}..{self.high_watermark}..{self.end}>"

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.batches[-1].end if self.batches else self.start

    # ---- writing -----------------------------------------------------------------------------------------------

    def append(self, records: memoryview) -> tuple[ErrorCode, int]:
        """Append a batch of a producer; return its base offset, also if it is stored already."""
        (parsed,) = split(records)
        if not parsed.checksum_holds():
            return ErrorCode.CORRUPT_MESSAGE, -1
        _, _, last, max_timestamp, producer_id, epoch, sequence, _ = _HEAD.unpack_from(records)
        if producer_id >= 0:
            error, known = self._check_sequence(producer_id, epoch, sequence, last)
            if error or known is not None:
                return error, -1 if known is None else known
        base = self.end
        content = bytearray(records)
        _OFFSET.pack_into(content, 0, base)
        _EPOCH.pack_into(content, _EPOCH_AT, self.epoch)
        self._store(
            StoredBatch(
                base,
                base + last + 1,
                self.epoch,
                bytes(content),
                max_timestamp,
                producer_id,
                epoch,
                sequence,
            )
        )
        return ErrorCode.NONE, base

    def _check_sequence(self, producer_id: int, epoch: int, sequence: int, last: int) -> tuple[ErrorCode, int | None]:
        producer = self.producers.get(producer_id)
        if producer is None:
            return ErrorCode.NONE, None
        if epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if epoch > producer.epoch:
            return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if sequence else ErrorCode.NONE), None
        for first, final, base in producer.batches:
            if (first, final) == (sequence, _sum(sequence, last)):
                return ErrorCode.NONE, base
        if producer.batches and sequence != _sum(producer.batches[-1][1], 1):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        return ErrorCode.NONE, None

    def _store(self, batch: StoredBatch) -> None:
        self.batches.append(batch)
        if batch.producer_id < 0:
            return
        producer = self.producers.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = self.producers[batch.producer_id] = KnownProducer(batch.producer_epoch)
        producer.batches.append((batch.sequence, _sum(batch.sequence, batch.end - batch.base - 1), batch.base))

    # ---- replication -------------------------------------------------------------------------------------------

    def elect(self, leader: int, end: int | None = None) -> None:
        """Begin a new leader epoch; without the records from ``end`` on, which the new leader does not have."""
        if end is not None and end < self.end:
            kept = [one for one in self.batches if one.end <= end]
            self.batches = kept
            self.high_watermark = min(self.high_watermark, self.end)
            self._restore_producers()
        self.leader = leader
        self.epoch += 1
        self.epochs = [one for one in self.epochs if one[1] < self.end or one[0] == 0]
        self.epochs.append((self.epoch, self.end))

    def _restore_producers(self) -> None:
        batches, self.batches, self.producers = self.batches, [], {}
        for batch in batches:
            self._store(batch)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the greatest leader epoch up to ``epoch``, and its end offset; -1 and -1 for one that is unknown."""
        if epoch > self.epoch:
            return -1, -1
        for index in range(len(self.epochs) - 1, -1, -1):
            found, _ = self.epochs[index]
            if found <= epoch:
                end = self.end if index == len(self.epochs) - 1 else self.epochs[index + 1][1]
                return found, end
        return -1, -1

    # ---- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, limit: int, end: int, *, at_least_one: bool) -> bytes:
        """Return batches from that of ``offset`` on, up to ``limit`` bytes and up to the offset ``end``."""
        chosen: list[bytes] = []
        size = 0
        for batch in self.batches_from(offset):
            if batch.base >= end or (size + len(batch.content) > limit and (chosen or not at_least_one)):
                break
            chosen.append(batch.content)
            size += len(batch.content)
        return b"".join(chosen)

    def batches_from(self, offset: int) -> Iterator[StoredBatch]:
        """Yield the batches from that of ``offset`` on."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        for index in range(low, len(self.batches)):
            yield self.batches[index]

    def offset_at(self, timestamp: int) -> tuple[int, int]:
        """Return the offset and timestamp of the first record not before ``timestamp``; -1 and -1 if there is none."""
        for batch in self.batches:
            if batch.max_timestamp < timestamp or batch.end > self.high_watermark:
                continue
            (parsed,) = split(memoryview(batch.content))
            parsed.decompress(1 << 30)
            for record in parsed.decode(self.topic, self.number, max(batch.base, self.start)).take(1 << 30):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return -1, -1

    def delete_before(self, offset: int) -> None:
        """Delete records below ``offset``, as retention does."""
        self.start = max(self.start, min(offset, self.high_watermark))
        # An empty log keeps its end.
        self.batches = [one for one in self.batches if one.end > self.start or one is self.batches[-1]]


def _sum(sequence: int, count: int) -> int:
    """Return a sequence number ``count`` later; after the greatest one comes 0."""
    return (sequence + count) % (1 << 31)
