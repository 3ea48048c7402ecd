"""Batches of a simulated producer."""

from __future__ import annotations

from collections.abc import Sequence


class ListedBatch:
    """Batch of values in a list, ten bytes each."""

    def __init__(self, limit: int) -> None:
        self.limit, self.values = limit, []

    @property
    def count(self) -> int:
        return len(self.values)

    def append(self, _key: object, value: object, _headers: object = (), _timestamp_ms: object = None) -> int:
        if len(self.values) >= self.limit:
            return 0
        self.values.append(value)
        return 10

    def selected(self, indices: Sequence[int]) -> ListedBatch:
        chosen = ListedBatch(self.limit)
        chosen.values = [self.values[index] for index in indices]
        return chosen
