"""Entries of the fetch buffer: batches, which are decoded a number of records at a time.

An entry and a slice have fixed costs. Small batches therefore share entries and slices: producers that do not batch
send batches of one record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import msgspec

from tailrace.batches.record_batch import RecordDecoder
from tailrace.consumer.partition import Partition
from tailrace.consumer.parts import ConsumerParts
from tailrace.errors import CorruptRecordError, DecodeError, MalformedMessageError, TailraceError
from tailrace.observe.events import RecordUnreadable
from tailrace.records import Record
from tailrace.user_exceptions import error_text

if TYPE_CHECKING:
    from tailrace.batches.columns import ColumnBuilder
    from tailrace.batches.record_batch import RecordBatch

__all__ = ["BufferedBatch", "Decoding"]

# ---- options of decoding: the limit of decompression, and ``key_deserializer`` and ``value_deserializer`` ------------


class Decoding:
    """Options with which the batches of one consumer are decoded.

    Attributes:
        has_deserializers: True if the user's functions are applied to keys or values.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts, config = parts, parts.config
        self._key, self._value = config.key_deserializer, config.value_deserializer
        self.has_deserializers = self._key is not None or self._value is not None
        self._is_skipping, self._observer = config.on_deserialize_error == "skip", parts.observer

    @property
    def max_bytes(self) -> int:
        """Maximum size of a decompressed batch (``max_decompressed_batch_bytes``)."""
        return self._parts.config.max_decompressed_batch_bytes

    def deserialize(self, records: Sequence[Record]) -> tuple[list[Record], DecodeError | None]:
        """Return the deserialized records before the first failure, and the error of that failure; None without one.

        With ``on_deserialize_error="skip"``, leave out records that cannot be deserialized instead.
        """
        deserialized = []
        for record in records:
            try:
                deserialized.append(self._deserialized(record))
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                failure = DecodeError(
                    f"{record.topic_partition} at offset {record.offset}: {error_text(error)}"
                    " - seek() past the record, or set on_deserialize_error='skip'"
                )
                failure.__cause__ = error
                if not self._is_skipping:
                    return deserialized, failure
                self._observer.emit(RecordUnreadable(record.topic_partition, record.offset, str(failure), failure))
        return deserialized, None

    def _deserialized(self, record: Record) -> Record:
        key: Any = record.key
        value: Any = record.value
        if self._key is not None and key is not None:
            key = self._key(key)
        if self._value is not None and value is not None:
            value = self._value(value)
        return msgspec.structs.replace(record, key=key, value=value)


# ---- entries of the fetch buffer: batches, which are decoded a number of records at a time ---------------------------

_Outcome: TypeAlias = bool | MalformedMessageError
"""Result of a decompression: True; False if the batch exceeds the size limit; or the error if it cannot be read."""

_INLINE_BYTES = 1 << 20
"""Maximum decompressed size of a batch that is decompressed in the event loop, which takes a few milliseconds."""
_INLINE_PACKED_BYTES = _INLINE_BYTES // 4
"""Compressed size above which a thread decompresses the batch, without an attempt in the event loop."""

_SMALL_BATCH_BYTES = 16_384
"""Maximum size of an entry with several batches, and of a compressed batch that shares a slice with earlier ones."""

# The executor starts no thread before the first large batch.
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tailrace-decompress")


class BufferedBatch:
    """Entry of the fetch buffer: a batch, several small batches, offsets without records, or an error.

    Offsets without records are those of control records and aborted transactions; they take no room in the buffer.

    Attributes:
        next_offset: offset at which the partition continues after the last batch.
        leader_epoch: leader epoch of the batches, for commits.
        size: size of the batches on the wire, in bytes; 0 without a batch.
        is_blocked: True if the last ``take`` returned fewer records than requested because an error follows them.
        is_decompressing: True while a thread decompresses the batch; no records can be taken meanwhile.
    """

    __slots__ = (
        "_batch",
        "_decoded_to",
        "_decoder",
        "_decoding",
        "_error",
        "_following",
        "_returned",
        "is_blocked",
        "is_decompressing",
        "leader_epoch",
        "next_offset",
        "size",
    )

    def __init__(
        self,
        next_offset: int,
        *,
        batch: RecordBatch | None = None,
        error: TailraceError | None = None,
        leader_epoch: int = -1,
        decoding: Decoding | None = None,
    ) -> None:
        self.next_offset = next_offset
        self.size = 0 if batch is None else batch.size
        self.leader_epoch = batch.leader_epoch if batch is not None else leader_epoch
        self._batch = batch
        """Batch that is decoded now."""
        self._following: deque[RecordBatch] = deque()
        """Small batches after ``_batch``."""
        self._decoder: RecordDecoder | None = None
        self._decoded_to = 0
        self._returned: list[Record] = []
        self._error = error
        self._decoding = decoding
        self.is_blocked = False
        self.is_decompressing = False

    def prepare(self, partition: Partition, on_prepared: Callable[[], None]) -> bool:
        """Decompress the batch and return True, or let a thread decompress a large batch and return False.

        ``on_prepared`` is called when the thread has finished. The next ``take`` raises the error if the batch cannot
        be decompressed.
        """
        batch = self._batch
        if batch is None or not self.is_compressed:
            return True
        limit = self._max_bytes
        if batch.size <= _INLINE_PACKED_BYTES:
            # The decompressed size is not known before the attempt. If it exceeds the limit, a thread decompresses the
            # batch.
            outcome = _decompress_within(batch, min(limit, _INLINE_BYTES))
            if outcome or limit <= _INLINE_BYTES:
                self._check_outcome(partition, outcome)
                return True
        self.is_decompressing = True

        def finish(future: asyncio.Future[_Outcome]) -> None:
            self.is_decompressing = False
            if not future.cancelled():
                self._check_outcome(partition, future.result())
            on_prepared()

        work = asyncio.get_running_loop().run_in_executor(_THREADS, _decompress_within, batch, limit)
        work.add_done_callback(finish)
        return False

    @property
    def is_compressed(self) -> bool:
        """True if the batch must be decompressed before records can be taken."""
        return self._batch is not None and self._error is None and self._batch.is_compressed

    @property
    def can_share_slice(self) -> bool:
        """True if records of this entry may be added to a slice that begins with records of the entry before.

        A large compressed batch is decompressed only for a slice of its own, which takes time.
        """
        if self._error is not None or self.is_decompressing:
            return False
        return not self.is_compressed or self.size <= _SMALL_BATCH_BYTES

    @property
    def plain_bytes(self) -> int:
        """Size in bytes of the decompressed records in memory."""
        return self._batch.plain_bytes if self._batch is not None else 0

    def pack(self) -> None:
        """Drop the decompressed records; records not yet taken are decompressed again when they are needed."""
        if self._batch is not None:
            self._batch.pack()
            self._decoder = None

    @property
    def _max_bytes(self) -> int:
        return 0 if self._decoding is None else self._decoding.max_bytes

    def _check_outcome(self, partition: Partition, outcome: _Outcome) -> None:
        assert self._batch is not None
        if isinstance(outcome, MalformedMessageError):
            self._fail(partition, str(outcome))
        elif not outcome:
            self._fail(
                partition,
                f"the batch of {self._batch.size} bytes decompresses to more than"
                f" max_decompressed_batch_bytes={self._max_bytes}",
                "raise this limit if you trust the producer",
            )

    def _fail(self, partition: Partition, *reason_and_remedy: str) -> CorruptRecordError:
        assert self._batch is not None
        self._error = error = CorruptRecordError(
            partition.topic_partition, self._batch.base_offset, self._batch.next_offset, *reason_and_remedy
        )
        return error

    def take(self, partition: Partition, count: int) -> list[Record]:
        """Take the next ``count`` records and return them; fewer at the end of the batch and before an error.

        Raises:
            TailraceError: the entry is an error. Each call raises it, until the user seeks past the entry.
            CorruptRecordError: the batch cannot be decoded. Each call raises this error, too.
        """
        if self._error is not None and not self._returned:
            raise self._error
        records: list[Record] = []
        if self._returned:
            records, self._returned = self._returned[:count], self._returned[count:]
            if len(records) == count or self.is_blocked:
                return records
        if self._batch is None:
            return records
        while True:
            try:
                records += self._decode(partition, count - len(records))
            except TailraceError as error:
                if not records:
                    raise
                self._error, self.is_blocked = error, True
            if len(records) >= count or self.is_blocked or not self._following:
                return records
            self._batch, self._decoder = self._following.popleft(), None

    def take_into(self, columns: ColumnBuilder, partition: Partition, count: int) -> Sequence[Record]:
        """Take the next ``count`` records as ``take`` does, add them to ``columns``, and return them.

        Raises:
            TailraceError: see ``take``; in this case nothing is added.
        """
        if self._returned or self._error is not None or self._batch is None or self._following:
            records = self.take(partition, count)
            columns.add_records(records)
            return records
        return self._decode(partition, count, columns)

    @property
    def has_error(self) -> bool:
        """True if this entry is an error or ends with an error, after which nothing is delivered."""
        return self._error is not None

    @property
    def is_empty(self) -> bool:
        return self._batch is None and self._error is None and not self._returned

    @property
    def next_timestamp(self) -> int | None:
        """Timestamp of the next record to take, or of the first record of its batch; None if it is unknown."""
        if self._returned:
            return self._returned[0].timestamp
        return None if self._batch is None else self._batch.first_timestamp

    def merge(self, following: BufferedBatch) -> bool:
        """Merge ``following`` into this entry and return True; return False unless both have only offsets to skip."""
        if not (self.is_empty and following.is_empty):
            return False
        self.next_offset, self.leader_epoch = following.next_offset, following.leader_epoch
        return True

    def add(self, batch: RecordBatch) -> bool:
        """Add a batch that follows this entry and return True; return False unless all batches are small and alike."""
        first = self._batch
        if first is None or first.is_compressed or batch.is_compressed or batch.leader_epoch != self.leader_epoch:
            return False
        if self.size + batch.size > _SMALL_BATCH_BYTES:
            return False
        self._following.append(batch)
        self.size += batch.size
        self.next_offset = batch.next_offset
        return True

    def max_count_from(self, offset: int) -> int:
        """Return an upper bound of the number of records to take whose offset is ``offset`` or higher."""
        if self._batch is None:
            return len(self._returned)
        return max(0, self.next_offset - max(offset, self._batch.base_offset))

    def give_back(self, records: Sequence[Record]) -> None:
        """Put back records that were taken and not used; the next ``take`` returns them first."""
        self._returned = [*records, *self._returned]

    @overload
    def _decode(self, partition: Partition, count: int) -> list[Record]: ...

    @overload
    def _decode(self, partition: Partition, count: int, columns: ColumnBuilder) -> Sequence[Record]: ...

    def _decode(self, partition: Partition, count: int, columns: ColumnBuilder | None = None) -> Sequence[Record]:
        if self._decoder is None:
            assert self._batch is not None
            assert partition.progress is not None
            start = max(partition.progress.delivered, self._decoded_to)
            self._decoder = RecordDecoder(self._batch, *partition.topic_partition, start)
        try:
            records: Sequence[Record]
            if columns is not None:
                records = self._decoder.take_into(columns, count)
            elif self._decoding is None or not self._decoding.has_deserializers:
                records = self._decoder.take(count)
            else:
                records = self._deserialized(self._decoding, self._decoder, count)
        except MalformedMessageError as error:
            raise self._fail(partition, str(error)) from error
        if records:
            self._decoded_to = records[-1].offset + 1
        return records

    def _deserialized(self, decoding: Decoding, decoder: RecordDecoder, count: int) -> list[Record]:
        deserialized: list[Record] = []
        while len(deserialized) < count:
            wanted = count - len(deserialized)
            taken = decoder.take(wanted)
            read, error = decoding.deserialize(taken)
            deserialized += read
            if error is not None:
                self._error, self.is_blocked = error, True
                if not deserialized:
                    raise error
                break
            if len(taken) < wanted:
                break
        return deserialized


def _decompress_within(batch: RecordBatch, limit: int) -> _Outcome:
    """Decompress ``batch`` if the result has at most ``limit`` bytes; return the outcome."""
    try:
        return batch.decompress(limit)
    except MalformedMessageError as error:
        return error
