"""Connection to a broker: frames, pipelined requests, and responses in order.

A frame begins with its length. One read may receive several small frames, and a large frame is read into its own
buffer. A length that no response can have is rejected before a buffer is allocated: the peer is not a Kafka broker, and
the four bytes of the length often show which kind of server the peer is. Accepted lengths are not trusted either: the
buffer of a frame has at most 8 MiB at first, and grows while bytes arrive.

A request that times out closes the connection, because a broker responds in order: later responses cannot arrive before
the missing one. The response to a canceled request is dropped when it arrives. A canceled request keeps its deadline,
so that the connection also closes if the network drops all packets. A lost connection is not reopened.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    MalformedMessageError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.installation import new_buffer
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse, BrokerVersions
from tailrace.protocol.message import Api, Request

__all__ = ["LIMIT", "Connection", "FrameProtocol", "guess_peer", "not_sent_error"]

# ---- frames ----------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct(">i")

OPENING_LIMIT = 1 << 20
"""Maximum size of a response, in bytes, while the connection is being opened."""
LIMIT = 1 << 30
"""Maximum size of a response, in bytes, on an open connection."""
_FIRST_BUFFER_LIMIT = 8 << 20
"""Maximum size of the first buffer of a frame, in bytes."""
_GROWTH = 4
"""Factor by which the buffer of a frame grows when it is full."""
_READ_AHEAD_BYTES = 16 << 10
"""Size of the buffer for reads that begin between two frames.

The bytes in this buffer are copied into the frames: a larger buffer means more copying, a smaller one more reads.
"""
_MAX_WRITE_BACKLOG = 1 << 20
"""Number of bytes that the socket has not taken above which ``send_only`` waits."""
_BACKLOG_PAUSE_S = 0.005
"""Time in seconds between two checks of the backlog by ``send_only``."""


class FrameProtocol(asyncio.BufferedProtocol):
    """asyncio protocol that passes each frame to ``on_frame``, and calls ``on_lost`` once when the connection ends.

    Both are methods of ``Connection``: a frame is the answer to the oldest pending request, whose ``send`` awaits it.

    Attributes:
        limit: maximum size of a frame, in bytes.
        transport: transport of the connection; None before the connection is made and after it is lost.
    """

    def __init__(self, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.limit = OPENING_LIMIT
        self.transport: asyncio.Transport | None = None
        self._on_frame, self._on_lost = on_frame, on_lost
        self._read_ahead = memoryview(bytearray(_READ_AHEAD_BYTES))
        self._body: memoryview | None = None
        """Buffer of a frame that has not completely arrived; None between two frames."""
        self._filled = 0
        """Number of bytes received into ``_body``, or into ``_read_ahead`` between two frames."""
        self._size = 0
        """Size of the frame that ``_body`` receives; ``_body`` may be smaller and then grows."""
        self._rejection: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame's size is known
        return (self._read_ahead if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._body is None:
            self._split_frames()
        elif self._filled == len(self._body):
            if self._filled < self._size:
                self._grow(self._body)
                return
            body, self._body, self._filled = self._body, None, 0
            self._on_frame(body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost(self._rejection or exc)

    def _split_frames(self) -> None:
        """Pass the complete frames in ``_read_ahead`` to ``on_frame``, and move an incomplete frame to ``_body``."""
        start, end, frames = 0, self._filled, []
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._read_ahead, start)
            if not _LENGTH.size <= size <= self.limit:
                self._reject(start)
                break
            arrived = self._read_ahead[start + _LENGTH.size : min(start + _LENGTH.size + size, end)]
            body = memoryview(new_buffer(min(size, _FIRST_BUFFER_LIMIT)))
            body[: len(arrived)] = arrived
            start += _LENGTH.size + len(arrived)
            if len(arrived) < size:
                self._body, self._size, self._filled = body, size, len(arrived)
                break
            frames.append(body)
        else:
            # At most three bytes are left: the beginning of the next frame's length.
            self._read_ahead[: end - start] = self._read_ahead[start:end]
            self._filled = end - start
        for frame in frames:
            self._on_frame(frame)

    def _grow(self, full: memoryview) -> None:
        # A bytearray cannot be resized here: the transport holds a view of it.
        self._body = memoryview(new_buffer(min(self._size, len(full) * _GROWTH)))
        self._body[: len(full)] = full

    def _reject(self, start: int) -> None:
        """Abort the connection because of the invalid length at ``start`` of ``_read_ahead``."""
        peer = guess_peer(bytes(self._read_ahead[start : start + _LENGTH.size]))
        if peer is not None:
            self._rejection = BrokerConnectionError(peer)
        else:
            (size,) = _LENGTH.unpack_from(self._read_ahead, start)
            self._rejection = MalformedMessageError(f"a response claims {size} bytes - is this a Kafka broker?")
        self._body, self._filled = memoryview(b""), 0
        if self.transport is not None:
            self.transport.abort()


def guess_peer(head: bytes) -> str | None:
    """Return an error message if ``head``, the first four bytes of a response, is of a known protocol, else None."""
    if head.startswith(b"HTTP"):
        return "a web server answered - this is not a Kafka broker's port"
    if head.startswith(b"SSH-"):
        return "an SSH server answered - this is not a Kafka broker's port"
    # PostgreSQL answers with "E" and a length. MySQL greets with a length in three bytes, the lowest first, and zero.
    if head[1:] == b"\x00\x00\x00" and head.isascii() and head[0]:
        return "a database server answered, such as PostgreSQL or MySQL - this is not a Kafka broker's port"
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL'), or use a listener without TLS"
    return None


# ---- requests and responses ------------------------------------------------------------------------------------------

ResponseT = TypeVar("ResponseT")

_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class _PendingRequest(NamedTuple):
    """Request that was sent and not answered yet."""

    correlation_id: int
    on_answer: Callable[[memoryview | TailraceError], None]
    """Function that is called once with the frame of the response, or with the reason why there is none."""
    deadline: asyncio.TimerHandle
    """Timer that closes the connection."""


def _set_answer(future: asyncio.Future[memoryview], answer: memoryview | TailraceError) -> None:
    if future.done():
        return
    if isinstance(answer, TailraceError):
        future.set_exception(answer)
        # Mark the exception as retrieved. Otherwise, asyncio would log it if the caller was canceled.
        future.exception()
    else:
        future.set_result(answer)


class Connection:
    """Connection to a broker, created by Dialer.

    Attributes:
        address: host and port of the broker, for messages.
        broker_versions: API versions of the broker; empty until the broker has answered ApiVersions.
        on_lost: called once with the reason if the connection ends without a call of ``close``.
        frames: asyncio protocol of the connection.
        is_closed_by_peer: True once the peer has closed or reset the connection.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.broker_versions: BrokerVersions = BrokerVersions(ApiVersionsResponse())
        self.on_lost: Callable[[TailraceError], None] = lambda _reason: None
        self.frames: FrameProtocol = FrameProtocol(self._on_frame, self._on_connection_lost)
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
        self.is_closed_by_peer: bool = False

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed: {self._end_reason}"
        return f"<Connection {self.address} {state}>"

    @property
    def is_open(self) -> bool:
        """True if requests can be sent."""
        return self._end_reason is None and self.frames.transport is not None

    @property
    def may_send(self) -> bool:
        """True if a request would be sent at once: the connection is open, not throttled, and its session valid."""
        return self.is_open and self._throttled_until <= self._loop.time() < self._renew_at

    def is_idle(self, limit_s: float) -> bool:
        """Return True if the last request or response was ``limit_s`` seconds ago, and no request is pending."""
        return not self._pending and self._loop.time() - self._used_at >= limit_s

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

    async def send(self, request: Request[ResponseT], timeout_s: float, *, version: int | None = None) -> ResponseT:
        """Send a request and return the response, which is decoded here.

        Callers are the handshake of a new connection, producers, and ``Broker.send`` (``net.broker``), which
        ``Fetcher``, ``GroupRequests`` and other senders of requests await.

        Args:
            request: request to send.
            timeout_s: maximum time in seconds.
            version: version of a request of the handshake or of a SASL exchange, which is sent without waiting until
                the broker stops to throttle, or the SASL session is renewed; None for the newest common version.

        Raises:
            RequestTimedOutError: no response came within ``timeout_s`` seconds, and the connection was closed; or the
                request was not sent in this time, because the broker throttled this client or the SASL session was
                not renewed.
            BrokerConnectionError: the connection failed.
            AuthenticationError: the renewal of the SASL session failed.
            UnsupportedVersionError: the broker and tailrace have no version of the request in common.
        """
        api = request.api
        if version is None:
            version = self.broker_versions.version_of(api, request.newest_version, request.oldest_version)
            deadline = self._loop.time() + timeout_s
            # Check both conditions again after each wait: meanwhile, another caller may have begun a SASL exchange, in
            # which no other request may be sent.
            while (now := self._loop.time()) < self._throttled_until or now >= self._renew_at:
                if now < self._throttled_until:
                    await self._wait_while_throttled(deadline, timeout_s)
                else:
                    await self._renew_session(deadline, timeout_s)
            timeout_s = deadline - now
        frame: asyncio.Future[memoryview] = self._loop.create_future()
        self._write(api, request, version, timeout_s, partial(_set_answer, frame))
        answer: ResponseT = self._decoded(api, await frame, version)
        return answer

    def post(
        self, request: Request[ResponseT], timeout_s: float, on_answer: Callable[[ResponseT | TailraceError], None]
    ) -> bool:
        """Send a request, and call ``on_answer`` with the response, or with the error that ``send`` would raise.

        Unlike a task that awaits ``send``, the function is called as soon as the response is read.

        Returns:
            False if the request was not sent, because ``may_send`` is False.

        Raises:
            BrokerConnectionError, UnsupportedVersionError: the request was not sent; see ``send``.
        """
        if not self.may_send:
            return False
        api = request.api
        version = self.broker_versions.version_of(api, request.newest_version, request.oldest_version)

        def on_frame(answer: memoryview | TailraceError) -> None:
            if isinstance(answer, TailraceError):
                on_answer(answer)
                return
            try:
                response = self._decoded(api, answer, version)
            except TailraceError as error:
                on_answer(error)
            else:
                on_answer(response)

        self._write(api, request, version, timeout_s, on_frame)
        return True

    def _decoded(self, api: Api[ResponseT], frame: memoryview, version: int) -> ResponseT:
        self._used_at = self._loop.time()
        try:
            answer: ResponseT = api.decode_response(frame, version)
        except MalformedMessageError as error:
            if api is ApiVersionsRequest.api and frame[4:6] == _UNSUPPORTED:
                # librdkafka's mock cluster encodes the list of versions as in version 3, Event Hubs the response as in
                # version 1. Nothing but the error code is needed.
                return cast("ResponseT", ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION))
            malformed = MalformedMessageError(f"{self.address}: {error}")
            self._fail(malformed)
            raise malformed from None
        throttle_ms: int = getattr(answer, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttled_until = self._loop.time() + throttle_ms / 1000
        return answer

    async def send_only(self, request: Request[Any], timeout_s: float) -> None:
        """Send a request to which the broker does not respond, such as Produce without acknowledgments.

        Raises:
            RequestTimedOutError: the connection was not ready for another request within ``timeout_s`` seconds.
            BrokerConnectionError: the connection failed.
            UnsupportedVersionError: the broker and tailrace have no version of the request in common.
        """
        api, deadline = request.api, self._loop.time() + timeout_s
        version = self.broker_versions.version_of(api, request.newest_version)
        while (now := self._loop.time()) >= self._renew_at or self._write_backlog > _MAX_WRITE_BACKLOG:
            if now >= self._renew_at:
                await self._renew_session(deadline, timeout_s)
            elif now >= deadline:
                raise not_sent_error(self.address, api.name)
            else:
                await asyncio.sleep(_BACKLOG_PAUSE_S)
        self._transport.write(self._frame(api, request, version))
        self._used_at = self._loop.time()

    @property
    def _write_backlog(self) -> int:
        """Number of bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def _transport(self) -> asyncio.Transport:
        transport = self.frames.transport
        if self._end_reason is not None or transport is None or transport.is_closing():
            raise NodeNotConnectedError(f"{self.address}: no longer connected ({self._end_reason or 'closing'})")
        return transport

    def _frame(self, api: Api[ResponseT], request: Request[ResponseT], version: int) -> bytearray:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return api.encode_request(request, version, correlation_id=self._correlation_id, client_id=self._client_id)

    def close(self, reason: TailraceError | None = None) -> None:
        """Close the connection; pending requests fail with ``reason``."""
        self._end(reason or NodeNotConnectedError(f"{self.address}: the connection was closed"))

    # ---- requests and responses --------------------------------------------------------------------------------

    def _write(
        self,
        api: Api[ResponseT],
        request: Request[ResponseT],
        version: int,
        timeout_s: float,
        on_answer: Callable[[memoryview | TailraceError], None],
    ) -> None:
        transport = self._transport
        if timeout_s <= 0:
            raise not_sent_error(self.address, api.name)
        frame = self._frame(api, request, version)
        deadline = self._loop.call_later(timeout_s, self._expire, api.name, timeout_s)
        self._pending.append(_PendingRequest(self._correlation_id, on_answer, deadline))
        transport.write(frame)
        self._used_at = self._loop.time()

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
        pending.on_answer(frame)

    def _on_connection_lost(self, error: Exception | None) -> None:
        self.is_closed_by_peer = error is None or (isinstance(error, OSError) and not isinstance(error, ssl.SSLError))
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
            pending.on_answer(reason)
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
