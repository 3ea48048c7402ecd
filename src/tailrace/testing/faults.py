"""What a FaultProxy does to frames: rules for single frames, and conditions of the whole line.

A fault is only worth something if it happened: leaving its ``with`` block asserts that it did.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from tailrace.protocol.encoding.api import Api
from tailrace.protocol.message import Request
from tailrace.testing.apis import api_by_key

__all__ = ["Direction", "Fault", "ProxiedFrame", "decode_frame", "kept"]

Direction = Literal["request", "answer"]
Action = Literal["edit", "drop", "hold", "repeat", "delay", "reset"]

_KEPT_BYTES = 1 << 16


@dataclass(frozen=True)
class ProxiedFrame:
    """One frame that passed the proxy.

    Attributes:
        direction: "request" or "answer".
        api_key: the number of the API.
        version: of the request, and so of its answer.
        at: when, on the clock of ``time.monotonic``.
        connection: counts the connections that the proxy took.
        client_id: what the client calls itself.
        size: bytes of the frame.
    """

    direction: Direction
    api_key: int
    version: int
    correlation_id: int
    at: float
    connection: int
    client_id: str | None
    size: int
    data: bytes = field(repr=False)
    """The frame itself, as the client or the broker sent it; empty when it was too large to keep."""

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        api = api_by_key(self.api_key)
        return api.name if api is not None else f"api {self.api_key}"

    @property
    def message(self) -> Any:  # noqa: ANN401 - of whatever API
        """Decoded message of the frame; None for an API that tailrace does not have."""
        api = api_by_key(self.api_key)
        if api is None or self.version not in api.versions or not self.data:
            return None
        return decode_frame(api, self.direction, memoryview(self.data), self.version)


class Fault:
    """One rule: what is done to which frames; made by the methods of FaultProxy.

    As a context manager it ends with the block, and fails the test when it never happened.
    """

    def __init__(  # noqa: PLR0913 - a rule has that many sides
        self,
        request: type[Request[Any]] | None,
        direction: Direction,
        action: Action,
        *,
        skip: int = 0,
        times: int | None = 1,
        edit: Callable[[Any], Any] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.request, self.direction, self.action = request, direction, action
        self.edit, self.delay_s = edit, delay_s
        self.count = 0
        """How often it happened."""
        self.error: Exception | None = None
        """What went wrong when it was done; leaving the block raises it."""
        self._skip, self._times = skip, times
        self._is_over = False
        self._lock = threading.Lock()
        self._happened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._released: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __repr__(self) -> str:
        of = self.request.__name__ if self.request is not None else "everything"
        return f"<Fault {self.action} {self.direction} of {of}, happened {self.count} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self.error is not None:
            raise AssertionError(f"{self!r} could not be done") from self.error
        if error is None:
            assert self.count, f"{self!r}: the fault never took place"

    async def took_place(self) -> None:
        """Wait until it has happened once."""
        await asyncio.wrap_future(self._happened)

    def release(self) -> None:
        """Let go what is held."""
        if not self._released.done():
            self._released.set_result(None)

    def end(self) -> None:
        """From now on, frames pass; what is held is let go."""
        self._is_over = True
        self.release()

    def takes(self, direction: Direction, api_key: int) -> bool:
        """Whether the rule is for this frame; counts it if so."""
        api = api_by_key(api_key)
        if direction != self.direction or (
            self.request is not None and (api is None or api.message is not self.request)
        ):
            return False
        with self._lock:
            if self._is_over or (self._times is not None and self.count >= self._times):
                return False
            if self._skip:
                self._skip -= 1
                return False
            self.count += 1
        if not self._happened.done():
            self._happened.set_result(None)
        return True

    async def held(self) -> None:
        """Wait for ``release``, in the proxy's own loop."""
        await asyncio.wrap_future(self._released)


def decode_frame(api: Api[Any], direction: Direction, frame: memoryview, version: int) -> Any:  # noqa: ANN401
    """The message in a frame."""
    return api.decode_request(frame, version) if direction == "request" else api.decode_response(frame, version)


def kept(data: bytes | bytearray) -> bytes:
    """What of a frame is worth remembering."""
    return bytes(data) if len(data) <= _KEPT_BYTES else b""
