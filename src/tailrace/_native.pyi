from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context
from typing import Any, Protocol, TypeAlias

from tailrace.records import Record

_Binary: TypeAlias = tuple[int, int, bytearray, bytearray, bytearray]

def new_buffer(size: int, /) -> bytearray: ...

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

class _Polled(Protocol):
    @property
    def remaining(self) -> Iterator[Any]: ...

class RecordIterator(AsyncIterator[Any]):
    def __init__(self, polled: _Polled, wait: Callable[[], Coroutine[Any, Any, Any]], /) -> None: ...
    def __anext__(self) -> Awaitable[Any]: ...

class _Worker(Protocol):
    record: Any
    @property
    def queued(self) -> object: ...
    @property
    def context(self) -> Context: ...
    @property
    def initial_context(self) -> Context: ...

class HandlerRun(Awaitable[Any]):
    def __init__(
        self,
        worker: _Worker,
        records: Iterator[Record],
        most: int,
        handle: Callable[[Any], Awaitable[Any]],
        function: Callable[..., Awaitable[Any]] | None,
        decode: Callable[[bytes | None], Any] | None,
        /,
    ) -> None: ...
    def __await__(self) -> Generator[Any, Any, Any]: ...
