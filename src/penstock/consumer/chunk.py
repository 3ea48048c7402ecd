"""What waits in the buffer: one batch of one partition, decoded a slice at a time when its turn comes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.consumer.deserializing import Deserializing
from penstock.core.positions import Position
from penstock.errors import CorruptRecordError, MalformedMessageError, PenstockError
from penstock.records import Record
from penstock.wire.batches import Batch, Decoder

__all__ = ["Chunk"]


class Chunk:
    """A batch; or offsets without records (markers, what was aborted), which take no room; or an error in their place.

    Attributes:
        next_offset: where the partition goes on behind it.
        leader_epoch: of the batch, for commits.
        is_blocked: fewer records came than were asked for, since an error stands behind them.
    """

    __slots__ = (
        "_batch",
        "_decoder",
        "_deserializing",
        "_error",
        "_returned",
        "is_blocked",
        "leader_epoch",
        "next_offset",
    )

    def __init__(  # noqa: PLR0913 - the things that may stand in a buffer
        self,
        next_offset: int,
        *,
        batch: Batch | None = None,
        returned: Sequence[Record] = (),
        error: PenstockError | None = None,
        leader_epoch: int = -1,
        deserializing: Deserializing | None = None,
    ) -> None:
        self.next_offset = next_offset
        self.leader_epoch = batch.leader_epoch if batch is not None else leader_epoch
        self._batch = batch
        self._decoder: Decoder | None = None
        self._returned = list(returned)
        self._error = error
        self._deserializing = deserializing
        self.is_blocked = False

    def take(self, position: Position, count: int) -> list[Record]:
        """The next ``count`` records; fewer only at the end.

        Raises:
            PenstockError: the error that stands here, every time, until somebody seeks past it.
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

    def takes_in(self, following: Chunk) -> bool:
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
            self._decoder = self._batch.decode(topic, partition, position.delivered)
        try:
            return self._read(self._decoder, count)
        except MalformedMessageError as error:
            self._error = CorruptRecordError(position.partition, self._batch.base_offset, str(error))
            raise self._error from error

    def _read(self, decoder: Decoder, count: int) -> list[Record]:
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
