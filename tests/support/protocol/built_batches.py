"""Record batches written by aiokafka's builders, independently of tailrace."""

from __future__ import annotations

import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import strategies as st

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

COMMIT, ABORT = 1, 0

_CRC_AT, _ATTRIBUTES_AT, _CONTROL = 17, 21, 0x20


class SentRecord(NamedTuple):
    """Record as a producer sends it."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 1_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(
    *records: SentRecord,
    base_offset: int = 0,
    codec: int = NONE,
    producer_id: int = -1,
    is_transactional: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """Return a batch of format 2 with this base offset, as in a broker's log."""
    builder = DefaultRecordBatchBuilder(2, codec, int(is_transactional), producer_id, 0, 0, 1 << 30)
    for at, one in enumerate(records):
        assert builder.append(at, one.timestamp, one.key, one.value, list(one.headers)) is not None
    return placed(bytes(builder.build()), base_offset, leader_epoch)


def with_header_name(name: bytes, *records: SentRecord) -> bytes:
    """Return a batch with the bytes ``name`` in place of the name of a header that consists of as many X.

    aiokafka's builder writes only names in UTF-8.
    """
    made = bytearray(batch(*records))
    placeholder = b"X" * len(name)
    assert placeholder in made
    return bytes(resealed(bytearray(made.replace(placeholder, name))))


def marker(kind: int, *, base_offset: int, producer_id: int) -> bytes:
    """Return the control batch that ends a transaction."""
    made = bytearray(
        batch(SentRecord(struct.pack(">hh", 0, kind), bytes(6)), producer_id=producer_id, is_transactional=True)
    )
    made[_ATTRIBUTES_AT + 1] |= _CONTROL
    return placed(resealed(made), base_offset)


def old_batch(*records: SentRecord, magic: int, base_offset: int = 0, codec: int = NONE) -> bytes:
    """Return messages of format 0 or 1, which are inside one message with the offset of the last if compressed."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for at, one in enumerate(records):
        # Inner offsets are relative in format 1, and absolute in format 0, as written by the broker.
        offset = at if codec and magic else base_offset + at
        assert builder.append(offset, one.timestamp, one.key, one.value) is not None
    made = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", made, 0, base_offset + len(records) - 1)
    return bytes(made)


def placed(made: bytes | bytearray, base_offset: int, leader_epoch: int = 0) -> bytes:
    """Return the batch with the offset and leader epoch that a leader sets, which the checksum does not cover."""
    placed = bytearray(made)
    struct.pack_into(">q", placed, 0, base_offset)
    struct.pack_into(">i", placed, 12, leader_epoch)
    return bytes(placed)


def resealed(made: bytearray) -> bytearray:
    """Return the batch with a checksum of its current content."""
    struct.pack_into(">I", made, _CRC_AT, calc_crc32c(bytes(made[_ATTRIBUTES_AT:])))
    return made


def any_records(at_most: int) -> st.SearchStrategy[tuple[SentRecord, ...]]:
    """Return a Hypothesis strategy for one to ``at_most`` records with keys, values and headers of any bytes."""
    some_bytes = st.none() | st.binary(max_size=300)
    headers = st.lists(st.tuples(st.text(max_size=3), some_bytes), max_size=3).map(tuple)
    one = st.builds(SentRecord, some_bytes, some_bytes, st.integers(0, 1 << 42), headers)
    return st.lists(one, min_size=1, max_size=at_most).map(tuple)
