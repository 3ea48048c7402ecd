from collections.abc import Callable

from tailrace.records import Record

class BatchDecoder:
    def __init__(
        self,
        content: memoryview | bytearray,
        topic: str,
        partition: int,
        lowest: int,
        record: Callable[..., Record],
        /,
    ) -> None: ...
    def take(self, most: int, /) -> list[Record]: ...
