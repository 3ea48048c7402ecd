"""What waits in the buffer: one batch of one partition, decoded a slice at a time when its turn comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from tailrace.consumer.delivery.deserializers import Deserializers
from tailrace.core.delivery.positions import Position
from tailrace.errors import CorruptRecordError, MalformedMessageError, TailraceError
from tailrace.records import Record

if TYPE_CHECKING:
    from tailrace.batches.record_batch import RecordBatch, RecordDecoder

__all__ = ["BufferedBatch"]

_Outcome: TypeAlias = bool | MalformedMessageError

_INLINE_BYTES = 1 << 20
"""A batch that decompresses to no more is decompressed on the event loop: it takes a few milliseconds."""
_INLINE_PACKED_BYTES = _INLINE_BYTES // 4
"""A batch that is larger on the wire is given to a thread without a try."""

# No thread is started before a large batch comes.
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tailrace-decompress")


class BufferedBatch:
    """A batch; or offsets without records (markers, what was aborted), which take no room; or an error in their place.

    Attributes:
        next_offset: where the partition goes on behind it.
        leader_epoch: of the batch, for commits.
        is_blocked: fewer records came than were asked for, since an error stands behind them.
        is_decompressing: a thread decompresses the batch; it has no records before that is done.
    """

    __slots__ = (
        "_batch",
        "_decoded_to",
        "_decoder",
        "_deserializing",
        "_error",
        "_limit",
        "_returned",
        "is_blocked",
        "is_decompressing",
        "leader_epoch",
        "next_offset",
    )

    def __init__(  # noqa: PLR0913 - the things that may stand in a buffer
        self,
        next_offset: int,
        *,
        batch: RecordBatch | None = None,
        returned: Sequence[Record] = (),
        error: TailraceError | None = None,
        leader_epoch: int = -1,
        deserializing: Deserializers | None = None,
        max_decompressed_bytes: int = 0,
    ) -> None:
        self.next_offset = next_offset
        self.leader_epoch = batch.leader_epoch if batch is not None else leader_epoch
        self._batch = batch
        self._decoder: RecordDecoder | None = None
        self._decoded_to = 0
        self._returned = list(returned)
        self._error = error
        self._deserializing = deserializing
        self.is_blocked = False
        self.is_decompressing = False
        self._limit = max_decompressed_bytes

    def prepare(self, position: Position, on_prepared: Callable[[], None]) -> bool:
        """Decompress the batch; False if a thread does so, since it is large, and calls ``on_prepared`` afterwards.

        An error is raised by the next ``take``.
        """
        batch = self._batch
        if batch is None or not self.is_compressed:
            return True
        if batch.size <= _INLINE_PACKED_BYTES:
            outcome = _fits(batch, min(self._limit, _INLINE_BYTES))
            if outcome or self._limit <= _INLINE_BYTES:
                self._judge(position, outcome)
                return True
        self.is_decompressing = True

        def finish(future: asyncio.Future[_Outcome]) -> None:
            self.is_decompressing = False
            if not future.cancelled():
                self._judge(position, future.result())
            on_prepared()

        work = asyncio.get_running_loop().run_in_executor(_THREADS, _fits, batch, self._limit)
        work.add_done_callback(finish)
        return False

    @property
    def is_compressed(self) -> bool:
        """True if the batch has to be decompressed before records are taken."""
        return self._batch is not None and self._error is None and self._batch.is_compressed

    @property
    def plain_bytes(self) -> int:
        """Bytes of the decompressed records that are kept here."""
        return self._batch.plain_bytes if self._batch is not None else 0

    def pack(self) -> None:
        """Forget the decompressed records; those not yet taken are decompressed again when their turn comes."""
        if self._batch is not None:
            self._batch.pack()
            self._decoder = None

    def _judge(self, position: Position, outcome: _Outcome) -> None:
        assert self._batch is not None
        if isinstance(outcome, MalformedMessageError):
            self._fail(position, str(outcome))
        elif not outcome:
            self._fail(
                position,
                f"a batch of {self._batch.size} bytes decompresses to more than max_decompressed_batch_bytes="
                f"{self._limit} - raise it if you trust the producer; the batch ends before offset {self.next_offset}",
            )

    def _fail(self, position: Position, reason: str) -> CorruptRecordError:
        assert self._batch is not None
        self._error = error = CorruptRecordError(position.partition, self._batch.base_offset, reason)
        return error

    def take(self, position: Position, count: int) -> list[Record]:
        """The next ``count`` records; fewer only at the end.

        Raises:
            TailraceError: the error that stands here, every time, until somebody seeks past it.
            CorruptRecordError: the batch cannot be decoded; likewise.
        """
        if self._error is not None and not self._returned:
            raise self._error
        if self._returned:
            taken, self._returned = self._returned[:count], self._returned[count:]
            if len(taken) == count or self.is_blocked:
                return taken
            return taken + self._decode(position, count - len(taken))
        return self._decode(position, count)

    @property
    def has_error(self) -> bool:
        """Whether an error stands here, behind which nothing comes."""
        return self._error is not None

    @property
    def is_nothing(self) -> bool:
        """Whether there are only offsets to pass over."""
        return self._batch is None and self._error is None and not self._returned

    def takes_in(self, following: BufferedBatch) -> bool:
        """Become one with what follows, if both are only offsets to pass over; says whether."""
        if not (self.is_nothing and following.is_nothing):
            return False
        self.next_offset, self.leader_epoch = following.next_offset, following.leader_epoch
        return True

    def expected(self, position: int) -> int:
        """How many records it has from ``position`` on, at most."""
        if self._batch is None:
            return len(self._returned)
        return max(0, self.next_offset - max(position, self._batch.base_offset))

    def give_back(self, records: Sequence[Record]) -> None:
        """Records that were taken and not used; they come first again."""
        self._returned = [*records, *self._returned]

    def _decode(self, position: Position, count: int) -> list[Record]:
        if self._batch is None:
            return []
        topic, partition = position.partition
        if self._decoder is None:
            assert position.delivered is not None
            self._decoder = self._batch.decode(topic, partition, max(position.delivered, self._decoded_to))
        try:
            records = self._read(self._decoder, count)
        except MalformedMessageError as error:
            raise self._fail(position, str(error)) from error
        if records:
            self._decoded_to = records[-1].offset + 1
        return records

    def _read(self, decoder: RecordDecoder, count: int) -> list[Record]:
        if self._deserializing is None:
            return decoder.take(count)
        good: list[Record] = []
        while len(good) < count:
            wanted = count - len(good)
            taken = decoder.take(wanted)
            read, error = self._deserializing.apply(taken)
            good += read
            if error is not None:
                self._error, self.is_blocked = error, True
                if not good:
                    raise error
                break
            if len(taken) < wanted:
                break
        return good


def _fits(batch: RecordBatch, limit: int) -> _Outcome:
    """Decompress ``batch``; False if it is larger than ``limit``, and an error as a value, since threads call this."""
    try:
        return batch.decompress(limit)
    except MalformedMessageError as error:
        return error
