"""Faults that a FaultProxy applies to frames."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from tailrace.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tailrace.protocol.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
)
from tailrace.protocol.handshake import CONSUMING, ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.message import Api, Request
from tailrace.protocol.metadata import DescribeClusterRequest, DescribeQuorumRequest
from tailrace.protocol.records import OffsetForLeaderEpochRequest, ProduceRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["APIS", "Direction", "Fault", "ProxiedFrame", "api_by_key", "decode_frame", "recorded_bytes"]

# ---- supported APIs --------------------------------------------------------------------------------------------------

APIS: tuple[Api[Any], ...] = (
    ApiVersionsRequest.api,
    SaslHandshakeRequest.api,
    SaslAuthenticateRequest.api,
    *CONSUMING,
    ConsumerGroupHeartbeatRequest.api,
    OffsetForLeaderEpochRequest.api,
    CreateTopicsRequest.api,
    DeleteTopicsRequest.api,
    CreatePartitionsRequest.api,
    DeleteRecordsRequest.api,
    DescribeConfigsRequest.api,
    IncrementalAlterConfigsRequest.api,
    DescribeClusterRequest.api,
    DescribeQuorumRequest.api,
    ListGroupsRequest.api,
    DescribeGroupsRequest.api,
    ConsumerGroupDescribeRequest.api,
    DeleteGroupsRequest.api,
    OffsetDeleteRequest.api,
    ProduceRequest.api,
    InitProducerIdRequest.api,
    AddPartitionsToTxnRequest.api,
    AddOffsetsToTxnRequest.api,
    TxnOffsetCommitRequest.api,
    EndTxnRequest.api,
)

_BY_KEY: Mapping[int, Api[Any]] = {api.key: api for api in APIS}


def api_by_key(key: int) -> Api[Any] | None:
    """Return the API with this key; None if tailrace does not support it."""
    return _BY_KEY.get(key)


# ---- faults ----------------------------------------------------------------------------------------------------------

Direction = Literal["request", "answer"]
Action = Literal["edit", "drop", "hold", "repeat", "delay", "reset"]

_MAX_RECORDED_BYTES = 1 << 16


@dataclass(frozen=True)
class ProxiedFrame:
    """Request or response as a FaultProxy received it, before a fault was applied.

    Attributes:
        direction: ``"request"`` or ``"answer"``.
        api_key: key of the API, such as 0 for Produce.
        version: version of the request and its response.
        correlation_id: number by which the client matches the response to its request.
        at: time at which the proxy received the frame, by ``time.monotonic``.
        connection: number of the client's connection, from 1, in the order in which the proxy accepted connections.
        client_id: client id in the request, also for a response.
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
    """Bytes of the frame without the length prefix; empty if the frame is larger than 64 KiB."""

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as ``"Produce"``, or ``"api 99"`` if tailrace does not support API 99."""
        api = api_by_key(self.api_key)
        return api.name if api is not None else f"api {self.api_key}"

    @property
    def message(self) -> Any:  # noqa: ANN401 - message of any API
        """Decoded message; None if tailrace does not support the API or its version, or if ``data`` is empty."""
        api = api_by_key(self.api_key)
        if api is None or self.version not in api.versions or not self.data:
            return None
        return decode_frame(api, self.direction, memoryview(self.data), self.version)


class Fault:
    """Rule that applies an action to matching frames, created by the methods of FaultProxy.

    A fault is applied up to ``times`` times, until ``end`` is called or its ``with`` block ends. The end of the block
    raises AssertionError if the function passed to ``edit_answer`` or ``edit_request`` has raised, or if the rule was
    never applied and the block has not raised.
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
        """Last exception of the function that edits frames, or None; frames for which it raised passed unchanged."""
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
        """Wait until the proxy has received the first frame to which the rule applies; there is no time limit."""
        await asyncio.wrap_future(self._applied)

    def release(self) -> None:
        """Send the held frames to their receivers, and hold no further frames."""
        if not self._released.done():
            self._released.set_result(None)

    def end(self) -> None:
        """Stop applying the rule, and send the held frames to their receivers."""
        self._is_over = True
        self.release()

    def claim(self, direction: Direction, api_key: int) -> bool:
        """Return True if the rule applies to a frame, and count the frame; the proxy calls this for each frame."""
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
        """Wait for ``release``, without a time limit. The proxy calls this method in its event loop."""
        await asyncio.wrap_future(self._released)


def decode_frame(api: Api[Any], direction: Direction, frame: memoryview, version: int) -> Any:  # noqa: ANN401
    """Return the message in a frame that has no length prefix."""
    return api.decode_request(frame, version) if direction == "request" else api.decode_response(frame, version)


def recorded_bytes(data: bytes | bytearray) -> bytes:
    """Return the value of ``ProxiedFrame.data``: the bytes of a frame, or no bytes if it is larger than 64 KiB."""
    return bytes(data) if len(data) <= _MAX_RECORDED_BYTES else b""
