"""Proxy between clients and a broker that decodes Kafka's frames, records them and applies faults.

The proxy runs in a thread with its own event loop, so that a test that blocks its loop does not block the proxy. Frames
that the proxy cannot decode (TLS, unknown versions) pass unchanged.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.api import read_request_header
from tailrace.protocol.message import Request
from tailrace.testing.apis import api_by_key
from tailrace.testing.connection_pair import LENGTH, ConnectionPair, ProxiedRequest, edited, read_frame
from tailrace.testing.faults import Direction, Fault, ProxiedFrame, kept

__all__ = ["FaultProxy"]

_START_S = 10


class FaultProxy:
    """TCP proxy of one broker, started and stopped by ``with`` or ``async with``.

    The broker must advertise the address of the proxy, as with ``KafkaCluster(proxied=True)``.

    Attributes:
        frames: all frames so far, in order.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.frames: list[ProxiedFrame] = []
        self._upstream = (upstream_host, upstream_port)
        self._faults: list[Fault] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Port for clients."""
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[ConnectionPair] = set()
        self._numbers = itertools.count(1)
        self._is_black_hole = False
        self._latency_s = 0.0
        self._bytes_per_s: float | None = None
        self._slice: int | None = None
        self._resets: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"FaultProxy {self.port}", daemon=True)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<FaultProxy {self.address} before {self._upstream[0]}:{self._upstream[1]}>"

    @property
    def address(self) -> str:
        """Host and port for the option ``bootstrap_servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Accept connections."""
        self._thread.start()
        self._run(self._listen())

    def close(self) -> None:
        """Stop the proxy and close all its connections."""
        if self._is_closed:
            return
        self._is_closed = True
        for fault in self._faults:
            fault.end()
        if self._thread.is_alive():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_START_S)
        self._loop.close()
        self._listener.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # ---- recorded frames ---------------------------------------------------------------------------------------

    def requests(self, kind: type[Request[Any]], *, client_id: str | None = None) -> list[ProxiedFrame]:
        """Return the requests of a type that have passed so far, from all clients or from ``client_id``."""
        return self._frames_of("request", kind, client_id)

    def answers(self, kind: type[Request[Any]], *, client_id: str | None = None) -> list[ProxiedFrame]:
        """Return the responses to requests of a type that have passed so far."""
        return self._frames_of("answer", kind, client_id)

    def _frames_of(self, direction: Direction, kind: type[Request[Any]], client_id: str | None) -> list[ProxiedFrame]:
        return [
            frame
            for frame in self.frames[:]
            if frame.direction == direction
            and (api := api_by_key(frame.api_key)) is not None
            and api.message is kind
            and client_id in {None, frame.client_id}
        ]

    # ---- faults of single frames -------------------------------------------------------------------------------

    def edit_answer(
        self, kind: type[Request[Any]], edit: Callable[[Any], Any], *, skip: int = 0, times: int | None = 1
    ) -> Fault:
        """Replace responses by the result of ``edit``.

        The first ``skip`` responses pass unchanged. Of the later responses, ``times`` are changed, or all if None.
        """
        return self._add(Fault(kind, "answer", "edit", edit=edit, skip=skip, times=times))

    def edit_request(
        self, kind: type[Request[Any]], edit: Callable[[Any], Any], *, skip: int = 0, times: int | None = 1
    ) -> Fault:
        """Replace requests by the result of ``edit``."""
        return self._add(Fault(kind, "request", "edit", edit=edit, skip=skip, times=times))

    def drop_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Drop responses, so that the requests take effect without the client's knowledge."""
        return self._add(Fault(kind, "answer", "drop", skip=skip, times=times))

    def drop_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Drop requests."""
        return self._add(Fault(kind, "request", "drop", skip=skip, times=times))

    def hold_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Hold responses, and all later responses on the same connection, until ``release``."""
        return self._add(Fault(kind, "answer", "hold", skip=skip, times=times))

    def hold_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Hold requests, and all later requests on the same connection, until ``release``."""
        return self._add(Fault(kind, "request", "hold", skip=skip, times=times))

    def repeat_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Send requests twice, and drop the response that arrives first; the client gets only the second one."""
        return self._add(Fault(kind, "request", "repeat", skip=skip, times=times))

    def delay_answer(self, kind: type[Request[Any]], seconds: float, *, times: int | None = None) -> Fault:
        """Delay responses."""
        return self._add(Fault(kind, "answer", "delay", delay_s=seconds, times=times))

    def reset_on_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Reset the connection instead of responding, so that the client does not know the outcome."""
        return self._add(Fault(kind, "answer", "reset", skip=skip, times=times))

    # ---- faults of all connections -----------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Delay every frame by ``seconds``; 0 ends the delay."""
        self._latency_s = seconds

    def throttle(self, bytes_per_s: float | None, *, slice_bytes: int | None = None) -> None:
        """Limit each connection to ``bytes_per_s`` and pass frames on in slices; None ends the limit."""
        self._bytes_per_s, self._slice = bytes_per_s, slice_bytes

    def black_hole(self) -> None:
        """Pass nothing and keep all sockets open, like a network that drops all packets."""
        self._is_black_hole = True

    def restore(self) -> None:
        """End ``black_hole``, ``refuse``, ``delay`` and ``throttle``; after ``black_hole``, reset all connections."""
        was_black_hole, self._is_black_hole = self._is_black_hole, False
        self._latency_s, self._bytes_per_s, self._slice = 0.0, None, None
        if was_black_hole:
            self.reset()
        self._run(self._listen())

    def reset(self) -> None:
        """Reset all connections (RST)."""
        self._run(self._reset_all())

    def reset_every(self, shortest_s: float, longest_s: float) -> None:
        """Reset all connections repeatedly, at random intervals, until ``reset_never``."""
        self._run(self._begin_resets(shortest_s, longest_s))

    def reset_never(self) -> None:
        """End ``reset_every``."""
        self._run(self._end_resets())

    def refuse(self) -> None:
        """Refuse new connections and reset existing ones, like a host whose broker is down."""
        self._run(self._stop_listening())
        self.reset()

    # ---- connections -------------------------------------------------------------------------------------------

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _listen(self) -> None:
        if self._server is None:
            if self._listener.fileno() < 0:
                self._listener = socket.create_server(("127.0.0.1", self.port))
            self._server = await asyncio.start_server(self._take, sock=self._listener)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            # A connection accepted in this turn of the loop needs the open server to get its transport: asyncio leaks
            # the socket otherwise. So stop accepting, let the transport be made, and then close.
            self._loop.remove_reader(self._listener)
            await asyncio.sleep(0)
            server.close()

    async def _close(self) -> None:
        await self._end_resets()
        await self._stop_listening()
        pairs = list(self._pairs)
        await self._reset_all()
        await asyncio.gather(*(pair.task for pair in pairs), return_exceptions=True)

    async def _reset_all(self) -> None:
        for pair in list(self._pairs):
            pair.reset()

    async def _begin_resets(self, shortest_s: float, longest_s: float) -> None:
        async def resets() -> None:
            while True:
                await asyncio.sleep(random.uniform(shortest_s, longest_s))  # noqa: S311
                await self._reset_all()

        await self._end_resets()
        self._resets = asyncio.ensure_future(resets())

    async def _end_resets(self) -> None:
        if self._resets is not None:
            self._resets.cancel()
            await asyncio.wait({self._resets})
            self._resets = None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        pair = ConnectionPair(next(self._numbers), task, writer)
        if self._server is None:
            # Accepted before the proxy began to refuse connections.
            pair.reset()
            return
        self._pairs.add(pair)
        try:
            upstream_reader, pair.upstream = await asyncio.open_connection(*self._upstream)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_requests(pair, reader, pair.upstream))
                both.create_task(self._pass_answers(pair, upstream_reader, writer))
        except* (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # When one side has ended, end the other side.
            pair.reset()
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _pass_requests(
        self, pair: ConnectionPair, source: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        while True:
            data = await read_frame(source)
            try:
                header = read_request_header(memoryview(data))
            except MalformedMessageError:
                await self._write(to, data)
                continue
            asked = ProxiedRequest(header.api_key, header.version, header.client_id)
            self._note("request", pair, asked, header.correlation_id, data)
            for fault in self._matching("request", asked.api_key):
                if fault.action == "repeat":
                    pair.asked[header.correlation_id] = asked
                    pair.swallow.add(header.correlation_id)
                    await self._write(to, data)
                else:
                    data = await self._apply(fault, pair, asked, header.correlation_id, data)
                if not data:
                    break
            if data:
                pair.asked[header.correlation_id] = asked
                await self._write(to, data)

    async def _pass_answers(self, pair: ConnectionPair, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while True:
            data = await read_frame(source)
            correlation_id = LENGTH.unpack_from(data)[0]
            if correlation_id in pair.swallow:
                pair.swallow.discard(correlation_id)
                continue
            asked = pair.asked.pop(correlation_id, None)
            if asked is None:
                await self._write(to, data)
                continue
            self._note("answer", pair, asked, correlation_id, data)
            for fault in self._matching("answer", asked.api_key):
                data = await self._apply(fault, pair, asked, correlation_id, data)
                if not data:
                    break
            if data:
                await self._write(to, data)

    def _matching(self, direction: Direction, api_key: int) -> list[Fault]:
        return [fault for fault in self._faults if fault.takes(direction, api_key)]

    async def _apply(
        self, fault: Fault, pair: ConnectionPair, asked: ProxiedRequest, correlation_id: int, data: bytes
    ) -> bytes:
        """Apply a fault, and return the frame to pass on; empty to drop the frame."""
        match fault.action:
            case "drop":
                return b""
            case "reset":
                pair.reset()
                return b""
            case "hold":
                await fault.held()
            case "delay":
                await asyncio.sleep(fault.delay_s)
            case "edit":
                try:
                    return edited(fault, asked, correlation_id, data)
                except Exception as error:  # noqa: BLE001 - code of the test; raised again at the end of the block
                    fault.error = error
        return data

    def _note(
        self, direction: Direction, pair: ConnectionPair, asked: ProxiedRequest, correlation_id: int, data: bytes
    ) -> None:
        self.frames.append(
            ProxiedFrame(
                direction,
                asked.api_key,
                asked.version,
                correlation_id,
                time.monotonic(),
                pair.number,
                asked.client_id,
                len(data),
                kept(data),
            )
        )

    async def _write(self, to: asyncio.StreamWriter, data: bytes) -> None:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if self._is_black_hole:
            # Wait until the connection is reset.
            await asyncio.Event().wait()
        framed = LENGTH.pack(len(data)) + data
        size = self._slice or len(framed)
        for at in range(0, len(framed), size):
            part = framed[at : at + size]
            to.write(part)
            await to.drain()
            if self._bytes_per_s is not None:
                await asyncio.sleep(len(part) / self._bytes_per_s)
