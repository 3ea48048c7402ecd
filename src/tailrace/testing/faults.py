"""Faults that a FaultProxy applies to frames."""

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
    """Frame that passed the proxy.

    Attributes:
        direction: "request" or "answer".
        api_key: key of the API.
        version: version of the request and its response.
        at: time at which the frame passed, by ``time.monotonic``.
        connection: number of the connection; connections are numbered in the order in which they are accepted.
        client_id: client id in the request.
        size: size of the frame, in bytes.
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
    """Frame as sent by the client or the broker; empty if the frame was too large to keep."""

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        api = api_by_key(self.api_key)
        return api.name if api is not None else f"api {self.api_key}"

    @property
    def message(self) -> Any:  # noqa: ANN401 - of whatever API
        """Decoded message of the frame; None for an API that tailrace does not support."""
        api = api_by_key(self.api_key)
        if api is None or self.version not in api.versions or not self.data:
            return None
        return decode_frame(api, self.direction, memoryview(self.data), self.version)


class Fault:
    """Rule that applies an action to matching frames, created by the methods of FaultProxy.

    A fault may be used as a context manager. At the end of the block, the rule ends, and AssertionError is raised if
    the rule was never applied.
    """

    def __init__(  # noqa: PLR0913 - settings of a rule
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
        """Number of frames to which the rule was applied."""
        self.error: Exception | None = None
        """Exception raised by ``edit``; it is the cause of the AssertionError at the end of the block."""
        self._skip, self._times = skip, times
        self._is_over = False
        self._lock = threading.Lock()
        self._happened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._released: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __repr__(self) -> str:
        of = self.request.__name__ if self.request is not None else "everything"
        return f"<Fault {self.action} {self.direction} of {of}, applied {self.count} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self.error is not None:
            raise AssertionError(f"{self!r} failed") from self.error
        if error is None:
            assert self.count, f"{self!r} was never applied"

    async def took_place(self) -> None:
        """Wait until the rule has been applied once."""
        await asyncio.wrap_future(self._happened)

    def release(self) -> None:
        """Pass on the held frames, and hold no more."""
        if not self._released.done():
            self._released.set_result(None)

    def end(self) -> None:
        """Stop applying the rule, and pass on the held frames."""
        self._is_over = True
        self.release()

    def takes(self, direction: Direction, api_key: int) -> bool:
        """Return True, and count the frame, if the rule applies to it."""
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
        """Wait for ``release``, in the proxy's event loop."""
        await asyncio.wrap_future(self._released)


def decode_frame(api: Api[Any], direction: Direction, frame: memoryview, version: int) -> Any:  # noqa: ANN401
    """Decode the message in a frame."""
    return api.decode_request(frame, version) if direction == "request" else api.decode_response(frame, version)


def kept(data: bytes | bytearray) -> bytes:
    """Return the bytes of a frame to keep: all bytes, or none if the frame is large."""
    return bytes(data) if len(data) <= _KEPT_BYTES else b""
