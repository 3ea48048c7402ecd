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

__all__ = ["Direction", "Fault", "ProxiedFrame", "bytes_to_keep", "decode_frame"]

Direction = Literal["request", "answer"]
Action = Literal["edit", "drop", "hold", "repeat", "delay", "reset"]

_MAX_KEPT_BYTES = 1 << 16


@dataclass(frozen=True)
class ProxiedFrame:
    """Request or response that a FaultProxy received, as it was before any fault.

    Attributes:
        direction: ``"request"`` or ``"answer"``.
        api_key: key of the API, such as 0 for Produce.
        version: version of the request and its response.
        correlation_id: number by which the client matches the response to its request.
        at: time at which the proxy received the frame, by ``time.monotonic``.
        connection: number of the client's connection: 1 for the first that the proxy accepted, and so on.
        client_id: client id in the request.
        size: size of the frame in bytes, without the four bytes of its length prefix.
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
    """Bytes of the frame without the length prefix; empty if they are more than 64 KiB."""

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as ``"Produce"``; ``"api 99"`` for one that tailrace does not support."""
        api = api_by_key(self.api_key)
        return api.name if api is not None else f"api {self.api_key}"

    @property
    def message(self) -> Any:  # noqa: ANN401 - of whatever API
        """Decoded message; None if tailrace does not support the API or its version, or if ``data`` is empty."""
        api = api_by_key(self.api_key)
        if api is None or self.version not in api.versions or not self.data:
            return None
        return decode_frame(api, self.direction, memoryview(self.data), self.version)


class Fault:
    """Rule that applies an action to matching frames, created by the methods of FaultProxy.

    A fault lasts until it has been applied ``times`` times, until ``end``, or until the end of its ``with`` block. At
    the end of the block, AssertionError is raised if the function passed to ``edit_answer`` or ``edit_request`` has
    raised, or if the block ends without an exception and the rule was never applied.
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
        """Last exception of the function that edits frames. The frame for which it was raised passed unchanged."""
        self._skip, self._times = skip, times
        self._is_over = False
        self._lock = threading.Lock()
        self._applied: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._released: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __repr__(self) -> str:
        kind = self.request.__name__ if self.request is not None else "everything"
        return f"<Fault {self.action} {self.direction} of {kind}, applied {self.count} times>"

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

    async def wait_applied(self) -> None:
        """Wait, without a time limit, until the rule begins to be applied to its first frame."""
        await asyncio.wrap_future(self._applied)

    def release(self) -> None:
        """Pass on the held frames, and hold no further frames."""
        if not self._released.done():
            self._released.set_result(None)

    def end(self) -> None:
        """Stop applying the rule, and pass on the held frames."""
        self._is_over = True
        self.release()

    def claim(self, direction: Direction, api_key: int) -> bool:
        """Count a frame that the proxy received; return True if the rule applies. Called by the proxy, not by tests."""
        api = api_by_key(api_key)
        if direction != self.direction or (
            self.request is not None and (api is None or api.request_type is not self.request)
        ):
            return False
        with self._lock:
            if self._is_over or (self._times is not None and self.count >= self._times):
                return False
            if self._skip:
                self._skip -= 1
                return False
            self.count += 1
        if not self._applied.done():
            self._applied.set_result(None)
        return True

    async def wait_released(self) -> None:
        """Wait, without a time limit, for ``release``. Called by the proxy, in its event loop, not by tests."""
        await asyncio.wrap_future(self._released)


def decode_frame(api: Api[Any], direction: Direction, frame: memoryview, version: int) -> Any:  # noqa: ANN401
    """Return the message in a frame that has no length prefix."""
    return api.decode_request(frame, version) if direction == "request" else api.decode_response(frame, version)


def bytes_to_keep(data: bytes | bytearray) -> bytes:
    """Return the bytes of a frame to keep in ``ProxiedFrame.data``: all bytes, or none of a large frame."""
    return bytes(data) if len(data) <= _MAX_KEPT_BYTES else b""
