"""Connection to a broker: pipelined requests, and responses in order.

A request that times out closes the connection, because later responses cannot arrive before the missing one. The
response to a canceled request is dropped, but the deadline of the request stays in force, so that a network that drops
all packets is noticed. A lost connection is not reopened.
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
from tailrace.protocol.api_versions import Offered, api_of
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.handshake import ApiVersionsResponse
from tailrace.protocol.message import Request

__all__ = ["Connection"]

ResponseT = TypeVar("ResponseT")


class _Pending(NamedTuple):
    correlation_id: int
    answer: asyncio.Future[memoryview]
    deadline: asyncio.TimerHandle


class Connection:
    """Connection to a broker, created by Dialer.

    Attributes:
        address: host and port of the broker, for messages.
        offered: API versions of the broker; empty until the broker has answered ApiVersions.
        on_lost: called once with the reason when the connection ends other than by ``close``.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.offered = Offered(ApiVersionsResponse())
        self.on_lost: Callable[[TailraceError], None] = lambda _reason: None
        self.frames = FrameProtocol(self._receive, self._lose)
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._ended: TailraceError | None = None
        self._used_at = self._loop.time()
        self._muted_until = 0.0
        self._renew: Callable[[], Awaitable[float | None]] | None = None
        self._renew_at = float("inf")
        self._renewing = asyncio.Lock()
        self._hint = ""

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed: {self._ended}"
        return f"<Connection {self.address} {state}>"

    @property
    def is_open(self) -> bool:
        """True if requests can be sent."""
        return self._ended is None and self.frames.transport is not None

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

    def opened(
        self, renew: Callable[[], Awaitable[float | None]] | None, lifetime_s: float | None, *, hint: str = ""
    ) -> None:
        """Accept large responses from now on, and renew the SASL session before it expires (KIP-368).

        Args:
            renew: function that authenticates again and returns the new lifetime.
            lifetime_s: lifetime of the SASL session; None if it does not expire.
            hint: advice for the error if the broker closes the connection before it answers a request.
        """
        self.frames.limit = LIMIT
        self._hint = hint
        self._renew = renew
        self._renew_in(lifetime_s)

    async def send(self, request: Request[ResponseT], timeout_s: float) -> ResponseT:
        """Send a request in the newest common version and return the response.

        Raises:
            RequestTimedOutError: no response within ``timeout_s``; the connection is closed. Or the request was not
                sent within ``timeout_s``, because the broker throttles this client; the connection stays open.
            BrokerConnectionError: the connection failed.
            AuthenticationError: the renewal of the SASL session failed.
            UnsupportedVersionError: no common version of the request.
        """
        version = self.offered.version_of(api_of(request), request.newest_version)
        deadline = self._loop.time() + timeout_s
        while True:
            # Check for renewal after every wait: otherwise a caller could write into the next renewal.
            if self._muted_until > self._loop.time():
                await self._wait_while_muted(deadline, timeout_s)
            elif self._loop.time() >= self._renew_at:
                await self._renew_session(deadline, timeout_s)
            else:
                return await self.exchange(request, version, deadline - self._loop.time())

    async def exchange(self, request: Request[ResponseT], version: int, timeout_s: float) -> ResponseT:
        """Send a request in the given version; used while the connection is being opened."""
        api = api_of(request)
        frame = await self._write(api, request, version, timeout_s)
        self._used_at = self._loop.time()
        try:
            answer = api.decode_response(frame, api.version_of_answer(frame, version))
        except MalformedMessageError as error:
            malformed = MalformedMessageError(f"{self.address}: {error}")
            self._fail(malformed)
            raise malformed from None
        throttle_ms: int = getattr(answer, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._muted_until = self._loop.time() + throttle_ms / 1000
        return answer

    def close(self, reason: TailraceError | None = None) -> None:
        """Close the connection; pending requests fail with ``reason``."""
        self._end(reason or NodeNotConnectedError(f"{self.address}: the connection was closed"))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _write(
        self, api: Api[ResponseT], request: Request[ResponseT], version: int, timeout_s: float
    ) -> asyncio.Future[memoryview]:
        transport = self.frames.transport
        if self._ended is not None or transport is None or transport.is_closing():
            raise NodeNotConnectedError(f"{self.address}: no longer connected ({self._ended or 'closing'})")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = api.encode_request(request, version, correlation_id=self._correlation_id, client_id=self._client_id)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        deadline = self._loop.call_later(max(timeout_s, 0), self._expire, api.name, timeout_s)
        self._pending.append(_Pending(self._correlation_id, answer, deadline))
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

    def _receive(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._fail(MalformedMessageError(f"{self.address}: unexpected correlation id {correlation_id}"))
            return
        pending = self._pending.popleft()
        pending.deadline.cancel()
        self._hint = ""
        if not pending.answer.done():
            pending.answer.set_result(frame)

    def _lose(self, error: Exception | None) -> None:
        self._fail(_loss_error(self.address, error, self._hint))

    def _fail(self, reason: TailraceError) -> None:
        if self._ended is None:
            self._end(reason)
            self.on_lost(reason)

    def _end(self, reason: TailraceError) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        while self._pending:
            pending = self._pending.popleft()
            pending.deadline.cancel()
            if not pending.answer.done():
                pending.answer.set_exception(reason)
                # Mark the exception as retrieved, because asyncio logs it otherwise if the caller was canceled.
                pending.answer.exception()
        if self.frames.transport is not None:
            self.frames.transport.abort()

    async def _wait_while_muted(self, deadline: float, timeout_s: float) -> None:
        """Wait while the broker throttles this client (KIP-219)."""
        await asyncio.sleep(min(self._muted_until, deadline) - self._loop.time())
        if self._muted_until > deadline:
            raise RequestTimedOutError(
                f"{self.address}: not sent within {timeout_s:.1f} s: the broker throttles this client"
                " - raise its quotas or the timeout"
            )

    async def _renew_session(self, deadline: float, timeout_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline), self._renewing:
                if self._ended is None and self._renew is not None and self._loop.time() >= self._renew_at:
                    await self._renew_now(self._renew)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{self.address}: the SASL session was not renewed within {timeout_s:.1f} s"
            ) from None
        if self._ended is not None:
            raise NodeNotConnectedError(f"{self.address}: no longer connected ({self._ended})")

    async def _renew_now(self, renew: Callable[[], Awaitable[float | None]]) -> None:
        try:
            lifetime_s = await renew()
        except BaseException as error:
            # In the middle of a SASL exchange, the broker accepts no other request.
            reason = error if isinstance(error, TailraceError) else None
            self._fail(reason or BrokerConnectionError(f"{self.address}: the SASL session renewal was interrupted"))
            raise
        self._renew_in(lifetime_s)

    def _renew_in(self, lifetime_s: float | None) -> None:
        # Renew after nine tenths of the lifetime, so that a slow response still arrives before the session expires.
        self._renew_at = float("inf") if not lifetime_s else self._loop.time() + 0.9 * lifetime_s


def _loss_error(address: str, error: Exception | None, hint: str) -> TailraceError:
    match error:
        case None:
            return BrokerConnectionError(f"{address}: the broker closed the connection{hint and f' - {hint}'}")
        case BrokerConnectionError() | MalformedMessageError():
            return type(error)(f"{address}: {error}")
        case ssl.SSLError():
            # A missing or unknown client certificate is refused only after the handshake (TLS 1.3).
            return AuthenticationError(
                f"{address}: the broker ended TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
                " - if it requires a client certificate, set ssl_certfile and ssl_keyfile"
            )
        case _:
            return BrokerConnectionError(f"{address}: the connection failed: {error}")
