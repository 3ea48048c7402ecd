"""Connection to a broker: pipelined requests, and responses in order.

A request that times out closes the connection, because a broker responds in order: later responses cannot arrive before
the missing one. The response to a canceled request is dropped when it arrives. A canceled request keeps its deadline,
so that the connection also closes if the network drops all packets. A lost connection is not reopened.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    MalformedMessageError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.net.frames import LIMIT, FrameProtocol
from tailrace.protocol.api_versions import BrokerVersions, api_of
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.handshake import ApiVersionsResponse
from tailrace.protocol.message import Request

__all__ = ["Connection", "not_sent_error"]

ResponseT = TypeVar("ResponseT")


class _PendingRequest(NamedTuple):
    """Request that was sent and not answered yet."""

    correlation_id: int
    answer: asyncio.Future[memoryview]
    deadline: asyncio.TimerHandle
    """Timer that closes the connection."""


class Connection:
    """Connection to a broker, created by Dialer.

    Attributes:
        address: host and port of the broker, for messages.
        broker_versions: API versions of the broker; empty until the broker has answered ApiVersions.
        on_lost: called once with the reason if the connection ends without a call of ``close``.
        frames: asyncio protocol of the connection.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.broker_versions = BrokerVersions(ApiVersionsResponse())
        self.on_lost: Callable[[TailraceError], None] = lambda _reason: None
        self.frames = FrameProtocol(self._on_frame, self._on_connection_lost)
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_PendingRequest] = deque()
        self._correlation_id = 0
        self._end_reason: TailraceError | None = None
        self._used_at = self._loop.time()
        self._throttled_until = 0.0
        self._reauthenticate: Callable[[], Awaitable[float | None]] | None = None
        self._renew_at = float("inf")
        self._renewal_lock = asyncio.Lock()
        self._advice = ""

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed: {self._end_reason}"
        return f"<Connection {self.address} {state}>"

    @property
    def is_open(self) -> bool:
        """True if requests can be sent."""
        return self._end_reason is None and self.frames.transport is not None

    @property
    def idle_s(self) -> float:
        """Time since the last request or response, in seconds; 0 while a request is pending."""
        return 0.0 if self._pending else self._loop.time() - self._used_at

    @property
    def local_address(self) -> tuple[str, int] | None:
        """Local host and port."""
        transport = self.frames.transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        return (name[0], name[1]) if name else None

    def finish_opening(
        self,
        reauthenticate: Callable[[], Awaitable[float | None]] | None,
        lifetime_s: float | None,
        *,
        advice: str = "",
    ) -> None:
        """End the handshake: accept large responses, and renew the SASL session before it expires (KIP-368).

        Args:
            reauthenticate: function that authenticates again and returns the lifetime of the new session in seconds,
                or None if the session does not expire. Without SASL, this argument is None.
            lifetime_s: lifetime of the SASL session in seconds; None if it does not expire.
            advice: end of the error message if the broker closes the connection before it answers another request.
        """
        self.frames.limit = LIMIT
        self._advice = advice
        self._reauthenticate = reauthenticate
        self._schedule_renewal(lifetime_s)

    async def send(self, request: Request[ResponseT], timeout_s: float) -> ResponseT:
        """Send a request in the newest common version and return the response.

        Raises:
            RequestTimedOutError: no response came within ``timeout_s`` seconds, and the connection was closed; or the
                request was not sent in this time, because the broker throttled this client or the SASL session was
                not renewed.
            BrokerConnectionError: the connection failed.
            AuthenticationError: the renewal of the SASL session failed.
            UnsupportedVersionError: the broker and tailrace have no version of the request in common.
        """
        version = self.broker_versions.version_of(api_of(request), request.newest_version)
        deadline = self._loop.time() + timeout_s
        while True:
            # Check both conditions again after each wait: meanwhile, another caller may have begun a SASL exchange, in
            # which no other request may be sent.
            if self._throttled_until > self._loop.time():
                await self._wait_while_throttled(deadline, timeout_s)
            elif self._loop.time() >= self._renew_at:
                await self._renew_session(deadline, timeout_s)
            else:
                return await self.exchange(request, version, deadline - self._loop.time())

    async def exchange(self, request: Request[ResponseT], version: int, timeout_s: float) -> ResponseT:
        """Send a request in ``version`` and return the response, without the waits of ``send``.

        Only the handshake and the renewal of the SASL session call this method directly.
        """
        api = api_of(request)
        frame = await self._write(api, request, version, timeout_s)
        self._used_at = self._loop.time()
        try:
            answer = api.decode_response(frame, api.response_version(frame, version))
        except MalformedMessageError as error:
            malformed = MalformedMessageError(f"{self.address}: {error}")
            self._fail(malformed)
            raise malformed from None
        throttle_ms: int = getattr(answer, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until = self._loop.time() + throttle_ms / 1000
        return answer

    def close(self, reason: TailraceError | None = None) -> None:
        """Close the connection; pending requests fail with ``reason``."""
        self._end(reason or NodeNotConnectedError(f"{self.address}: the connection was closed"))

    # ---- requests and responses --------------------------------------------------------------------------------

    def _write(
        self, api: Api[ResponseT], request: Request[ResponseT], version: int, timeout_s: float
    ) -> asyncio.Future[memoryview]:
        transport = self.frames.transport
        if self._end_reason is not None or transport is None or transport.is_closing():
            raise NodeNotConnectedError(f"{self.address}: no longer connected ({self._end_reason or 'closing'})")
        if timeout_s <= 0:
            raise not_sent_error(self.address, api.name)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = api.encode_request(request, version, correlation_id=self._correlation_id, client_id=self._client_id)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        deadline = self._loop.call_later(timeout_s, self._expire, api.name, timeout_s)
        self._pending.append(_PendingRequest(self._correlation_id, answer, deadline))
        transport.write(frame)
        self._used_at = self._loop.time()
        return answer

    def _expire(self, name: str, timeout_s: float) -> None:
        self._fail(
            RequestTimedOutError(
                f"{self.address}: no answer to {name} within {timeout_s:.1f} s"
                " - the broker hangs, or the network drops packets"
            )
        )

    def _on_frame(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._fail(MalformedMessageError(f"{self.address}: unexpected correlation id {correlation_id}"))
            return
        pending = self._pending.popleft()
        pending.deadline.cancel()
        self._advice = ""
        if not pending.answer.done():
            pending.answer.set_result(frame)

    def _on_connection_lost(self, error: Exception | None) -> None:
        self._fail(_connection_lost_error(self.address, error, self._advice))

    def _fail(self, reason: TailraceError) -> None:
        """End the connection and call ``on_lost``; do nothing if it has ended."""
        if self._end_reason is None:
            self._end(reason)
            self.on_lost(reason)

    def _end(self, reason: TailraceError) -> None:
        """Fail all pending requests with ``reason`` and close the socket; do nothing if the connection has ended."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        while self._pending:
            pending = self._pending.popleft()
            pending.deadline.cancel()
            if not pending.answer.done():
                pending.answer.set_exception(reason)
                # Mark the exception as retrieved. Otherwise, asyncio would log it if the caller was canceled.
                pending.answer.exception()
        if self.frames.transport is not None:
            self.frames.transport.abort()

    # ---- throttling and SASL sessions --------------------------------------------------------------------------

    async def _wait_while_throttled(self, deadline: float, timeout_s: float) -> None:
        """Wait while the broker throttles this client (KIP-219)."""
        await asyncio.sleep(min(self._throttled_until, deadline) - self._loop.time())
        if self._throttled_until > deadline:
            raise RequestTimedOutError(
                f"{self.address}: not sent within {timeout_s:.1f} s: the broker throttles this client"
                " - raise the client's quotas or the timeout"
            )

    async def _renew_session(self, deadline: float, timeout_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline), self._renewal_lock:
                if (
                    self._end_reason is None
                    and self._reauthenticate is not None
                    and self._loop.time() >= self._renew_at
                ):
                    await self._authenticate_again(self._reauthenticate)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{self.address}: the SASL session was not renewed within {timeout_s:.1f} s"
            ) from None
        if self._end_reason is not None:
            raise NodeNotConnectedError(f"{self.address}: no longer connected ({self._end_reason})")

    async def _authenticate_again(self, reauthenticate: Callable[[], Awaitable[float | None]]) -> None:
        try:
            lifetime_s = await reauthenticate()
        except BaseException as error:
            # The connection cannot be used any more, because a broker accepts no other request during a SASL exchange.
            reason = error if isinstance(error, TailraceError) else None
            self._fail(reason or BrokerConnectionError(f"{self.address}: the SASL session renewal was interrupted"))
            raise
        self._schedule_renewal(lifetime_s)

    def _schedule_renewal(self, lifetime_s: float | None) -> None:
        # Renew after nine tenths of the lifetime, so that a slow response still arrives before the session expires.
        self._renew_at = float("inf") if not lifetime_s else self._loop.time() + 0.9 * lifetime_s


def not_sent_error(address: str, request: str) -> RequestTimedOutError:
    """Return the error of a request whose time limit was over before the request could be sent."""
    return RequestTimedOutError(
        f"{address}: {request} was not sent, because its time limit was over"
        " - the event loop was blocked, or this process was suspended"
    )


def _connection_lost_error(address: str, error: Exception | None, advice: str) -> TailraceError:
    match error:
        case None:
            return BrokerConnectionError(f"{address}: the broker closed the connection{advice and f' - {advice}'}")
        case BrokerConnectionError() | MalformedMessageError():
            return type(error)(f"{address}: {error}")
        case ssl.SSLError():
            # With TLS 1.3, the broker refuses a missing or unknown client certificate after the handshake.
            return AuthenticationError(
                f"{address}: the broker ended TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
                " - if it requires a client certificate, set ssl_certfile and ssl_keyfile"
            )
        case _:
            return BrokerConnectionError(f"{address}: the connection failed: {error}")
