from collections.abc import Callable
from typing import TypeAlias

from tailrace.records import Record

_Binary: TypeAlias = tuple[int, int, bytearray, bytearray, bytearray]

class Columns:
    def __init__(self) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def offset(self, row: int, /) -> int: ...
    def finish(self) -> tuple[list[bytearray], list[_Binary]]: ...

class BatchDecoder:
    def __init__(
        self,
        content: memoryview | bytes | bytearray,
        topic: str,
        partition: int,
        lowest: int,
        record: Callable[..., Record],
        /,
    ) -> None: ...
    def take(self, most: int, /) -> list[Record]: ...
    def take_into(self, columns: Columns, most: int, /) -> int: ...
