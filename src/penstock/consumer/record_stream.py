"""What a user sees of one partition's stream."""

from __future__ import annotations

from typing import Protocol, Self

from penstock.records import Record, TopicPartition

__all__ = ["RecordStream"]


class RecordStream(Protocol):
    """The records of one partition, for as long as it is ours; the loop ends when it is given back."""

    @property
    def partition(self) -> TopicPartition:
        """Which one."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Record: ...

    def ack(self, record: Record) -> bool:
        """Say that the record in hand is done without asking for the next one; False when it is not in hand."""
