"""One open connection to a broker: requests out, answers in, in order, each to the one who asked.

Rule of this file: a connection that was lost stays lost; whoever wants another asks the dialer. Requests are
pipelined. One that is not answered in time takes the connection with it, since all answers behind it wait too. A
caller that is cancelled leaves its answer to be dropped when it comes, and its deadline in force: a network that
swallows everything is noticed even if nobody waits to the end.
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
    """An open connection; made by the dialer.

    Attributes:
        address: host and port of the broker, for people.
        offered: the versions that the broker offers; empty until the dialer has asked.
        on_lost: told once, with the reason, when the connection ends and nobody called ``close``.
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
        """Whether requests can be sent."""
        return self._ended is None and self.frames.transport is not None

    @property
    def idle_s(self) -> float:
        """How long nothing was sent or received."""
        return 0.0 if self._pending else self._loop.time() - self._used_at

    @property
    def local_address(self) -> tuple[str, int] | None:
        """Our end of it."""
        transport = self.frames.transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        return (name[0], name[1]) if name else None

    def opened(
        self, renew: Callable[[], Awaitable[float | None]] | None, lifetime_s: float | None, *, hint: str = ""
    ) -> None:
        """The dialer is through: answers may be large from now on, and the SASL session may have an end (KIP-368).

        ``hint`` is for the case that the broker hangs up on the very first request.
        """
        self.frames.limit = LIMIT
        self._hint = hint
        self._renew = renew
        self._renew_in(lifetime_s)

    async def send(self, request: Request[ResponseT], timeout_s: float) -> ResponseT:
        """Send a request in the newest version that both sides speak, and wait for its answer.

        Raises:
            RequestTimedOutError: no answer in ``timeout_s``, and the connection is closed; or not sent in that time,
                since the broker throttles us.
            BrokerConnectionError: the connection broke.
            AuthenticationError: the SASL session had to be renewed and was not.
            UnsupportedVersionError: the broker does not speak this.
        """
        version = self.offered.version_of(api_of(request), request.newest_version)
        deadline = self._loop.time() + timeout_s
        while True:
            # The renewal comes last, so that nobody who has passed it writes into the middle of the next one.
            if self._muted_until > self._loop.time():
                await self._wait_while_muted(deadline, timeout_s)
            elif self._loop.time() >= self._renew_at:
                await self._renew_session(deadline, timeout_s)
            else:
                return await self.exchange(request, version, deadline - self._loop.time())

    async def exchange(self, request: Request[ResponseT], version: int, timeout_s: float) -> ResponseT:
        """Send a request in a version of the caller's choice: for the opening of the connection."""
        api = api_of(request)
        frame = await self._write(api, request, version, timeout_s)
        self._used_at = self._loop.time()
        try:
            answer = api.decode_response(frame, api.version_of_answer(frame, version))
        except MalformedMessageError as error:
            broken = MalformedMessageError(f"{self.address}: {error}")
            self._break(broken)
            raise broken from None
        throttle_ms: int = getattr(answer, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._muted_until = self._loop.time() + throttle_ms / 1000
        return answer

    def close(self, reason: TailraceError | None = None) -> None:
        """Close it; whoever still waits for an answer is told ``reason``."""
        self._end(reason or NodeNotConnectedError(f"{self.address}: the connection was closed"))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _write(
        self, api: Api[ResponseT], request: Request[ResponseT], version: int, timeout_s: float
    ) -> asyncio.Future[memoryview]:
        transport = self.frames.transport
        if self._ended is not None or transport is None or transport.is_closing():
            raise NodeNotConnectedError(f"{self.address}: not connected any more ({self._ended or 'closing'})")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = api.encode_request(request, version, correlation_id=self._correlation_id, client_id=self._client_id)
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        deadline = self._loop.call_later(max(timeout_s, 0), self._expire, api.name, timeout_s)
        self._pending.append(_Pending(self._correlation_id, answer, deadline))
        transport.write(frame)
        self._used_at = self._loop.time()
        return answer

    def _expire(self, name: str, timeout_s: float) -> None:
        self._break(
            RequestTimedOutError(
                f"{self.address}: no answer to {name} within {timeout_s:.1f} s"
                " - the broker hangs, or the network loses what it says"
            )
        )

    def _receive(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._break(MalformedMessageError(f"{self.address}: answer {correlation_id} to no question of ours"))
            return
        pending = self._pending.popleft()
        pending.deadline.cancel()
        self._hint = ""
        if not pending.answer.done():
            pending.answer.set_result(frame)

    def _lose(self, error: Exception | None) -> None:
        self._break(_why_lost(self.address, error, self._hint))

    def _break(self, reason: TailraceError) -> None:
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
                # Whoever asked may have gone; that is not worth a word on the console.
                pending.answer.exception()
        if self.frames.transport is not None:
            self.frames.transport.abort()

    async def _wait_while_muted(self, deadline: float, timeout_s: float) -> None:
        """The broker has said how long it will not listen (KIP-219)."""
        await asyncio.sleep(min(self._muted_until, deadline) - self._loop.time())
        if self._muted_until > deadline:
            raise RequestTimedOutError(
                f"{self.address}: not sent within {timeout_s:.1f} s: the broker throttles this client"
                " - see its quotas, or wait longer"
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
            raise NodeNotConnectedError(f"{self.address}: not connected any more ({self._ended})")

    async def _renew_now(self, renew: Callable[[], Awaitable[float | None]]) -> None:
        try:
            lifetime_s = await renew()
        except BaseException as error:
            # Half-way through, the broker takes nothing but the other half.
            reason = error if isinstance(error, TailraceError) else None
            self._break(reason or BrokerConnectionError(f"{self.address}: the renewal of its SASL session was cut off"))
            raise
        self._renew_in(lifetime_s)

    def _renew_in(self, lifetime_s: float | None) -> None:
        # At nine tenths of its life, so that a slow answer is still in time.
        self._renew_at = float("inf") if not lifetime_s else self._loop.time() + 0.9 * lifetime_s


def _why_lost(address: str, error: Exception | None, hint: str) -> TailraceError:
    match error:
        case None:
            return BrokerConnectionError(f"{address}: the broker closed the connection{hint and f' - {hint}'}")
        case BrokerConnectionError() | MalformedMessageError():
            return type(error)(f"{address}: {error}")
        case ssl.SSLError():
            # A certificate of ours that is missing or unknown is refused only after the handshake (TLS 1.3).
            return AuthenticationError(
                f"{address}: the broker ended TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
                " - if it wants a certificate of ours, set ssl_certfile and ssl_keyfile"
            )
        case _:
            return BrokerConnectionError(f"{address}: the connection broke: {error}")
