"""TCP proxy between clients and a broker, which records Kafka's frames and applies faults to them.

The proxy runs in a thread with its own event loop, so a test that blocks its event loop does not block the proxy. The
proxy must read frames, so it does not support TLS. A request whose header it cannot decode, and its response, pass
unchanged and are not recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from tailrace.errors import MalformedMessageError
from tailrace.protocol.message import Request, read_request_header
from tailrace.testing.faults import Direction, Fault, ProxiedFrame, api_by_key, decode_frame, recorded_bytes

__all__ = ["LENGTH", "ConnectionPair", "FaultProxy", "ProxiedRequest", "edit_frame", "read_frame"]

# ---- connections -----------------------------------------------------------------------------------------------------

LENGTH = struct.Struct(">i")
"""Format of the length prefix of a frame, and of the correlation id at the start of a response."""


class ProxiedRequest:
    """Header of a request, kept until the proxy has the response."""

    def __init__(self, api_key: int, version: int, client_id: str | None) -> None:
        self.api_key, self.version, self.client_id = api_key, version, client_id


class ConnectionPair:
    """Connection from a client to the proxy, with its connection from the proxy to the broker.

    Attributes:
        number: number of the client's connection, from 1.
        task: task that serves the connections.
        client: writer to the client.
        upstream: writer to the broker; None until the proxy is connected.
        pending: requests without a response, by correlation id.
        answers_to_drop: correlation ids of repeated requests; the first response to each is dropped.
    """

    def __init__(self, number: int, task: asyncio.Task[Any], client: asyncio.StreamWriter) -> None:
        self.number, self.task, self.client = number, task, client
        self.upstream: asyncio.StreamWriter | None = None
        self.pending: dict[int, ProxiedRequest] = {}
        self.answers_to_drop: set[int] = set()

    def reset(self) -> None:
        """Reset both connections, so that client and broker receive a TCP RST."""
        for writer in (self.client, self.upstream):
            if writer is None:
                continue
            peer: socket.socket | None = writer.get_extra_info("socket")
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def read_frame(source: asyncio.StreamReader) -> bytes:
    """Return the next frame without its length prefix."""
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    return await source.readexactly(size)


def edit_frame(fault: Fault, request: ProxiedRequest, correlation_id: int, data: bytes) -> bytes:
    """Decode a frame, call the fault's ``edit`` with the message, and return the encoded result as a frame.

    Neither frame has a length prefix.
    """
    api = api_by_key(request.api_key)
    assert api is not None
    assert fault.edit is not None
    message = fault.edit(decode_frame(api, fault.direction, memoryview(data), request.version))
    if fault.direction == "answer":
        frame = api.encode_response(message, request.version, correlation_id=correlation_id)
    else:
        frame = message.api.encode_request(
            message, request.version, correlation_id=correlation_id, client_id=request.client_id
        )
    return bytes(frame[LENGTH.size :])


# ---- proxy -----------------------------------------------------------------------------------------------------------

_CALL_TIMEOUT_S = 10
"""Maximum time in seconds for which a method waits for the proxy's event loop or thread."""


class FaultProxy:
    """TCP proxy of one broker, started and stopped by ``with`` or ``async with``.

    The broker must advertise the address of the proxy, as with ``KafkaCluster(proxied=True)``. TLS is not supported.

    Methods whose names end with ``_request`` or ``_answer`` apply a fault to the requests of one type, or to their
    responses, and return the ``Fault``. The first ``skip`` of these frames pass unchanged. The fault is then applied to
    the next ``times`` frames, or to all further frames if ``times`` is None.

    Attributes:
        frames: requests and responses in the order in which the proxy received them. A frame is recorded as it was
            received, before it is edited, held, delayed or dropped.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.frames: list[ProxiedFrame] = []
        self._upstream = (upstream_host, upstream_port)
        self._faults: list[Fault] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Port of the proxy, to which clients connect."""
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[ConnectionPair] = set()
        self._connection_numbers = itertools.count(1)
        self._is_black_hole = False
        self._latency_s = 0.0
        self._bytes_per_s: float | None = None
        self._part_size: int | None = None
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
        """Start the proxy's thread and accept connections."""
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
            self._thread.join(_CALL_TIMEOUT_S)
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
        """Return the recorded requests of type ``kind``, of ``client_id`` or, if it is None, of all clients."""
        return self._frames_of("request", kind, client_id)

    def answers(self, kind: type[Request[Any]], *, client_id: str | None = None) -> list[ProxiedFrame]:
        """Return the recorded responses to the requests that ``requests`` would return."""
        return self._frames_of("answer", kind, client_id)

    def _frames_of(self, direction: Direction, kind: type[Request[Any]], client_id: str | None) -> list[ProxiedFrame]:
        return [
            frame
            for frame in self.frames[:]
            if frame.direction == direction
            and (api := api_by_key(frame.api_key)) is not None
            and api.request_type is kind
            and client_id in {None, frame.client_id}
        ]

    # ---- faults of single frames -------------------------------------------------------------------------------

    def edit_answer(
        self, kind: type[Request[Any]], edit: Callable[[Any], Any], *, skip: int = 0, times: int | None = 1
    ) -> Fault:
        """Replace responses by the result of ``edit``, which is called with the decoded response.

        If ``edit`` raises, the response passes unchanged, and the fault's ``with`` block raises AssertionError.
        """
        return self._add(Fault(kind, "answer", "edit", edit=edit, skip=skip, times=times))

    def edit_request(
        self, kind: type[Request[Any]], edit: Callable[[Any], Any], *, skip: int = 0, times: int | None = 1
    ) -> Fault:
        """Replace requests by the result of ``edit``; see ``edit_answer``."""
        return self._add(Fault(kind, "request", "edit", edit=edit, skip=skip, times=times))

    def drop_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Drop responses, so that requests take effect but the client receives no response."""
        return self._add(Fault(kind, "answer", "drop", skip=skip, times=times))

    def drop_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Drop requests, so that they take no effect and the client receives no response."""
        return self._add(Fault(kind, "request", "drop", skip=skip, times=times))

    def hold_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Hold responses, and all later responses on the same connection, until ``release()`` of the fault."""
        return self._add(Fault(kind, "answer", "hold", skip=skip, times=times))

    def hold_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Hold requests, and all later requests on the same connection, until ``release()`` of the fault."""
        return self._add(Fault(kind, "request", "hold", skip=skip, times=times))

    def repeat_request(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Send requests twice, and drop the first of the two responses, so that the client receives only the second."""
        return self._add(Fault(kind, "request", "repeat", skip=skip, times=times))

    def delay_answer(self, kind: type[Request[Any]], seconds: float, *, times: int | None = None) -> Fault:
        """Delay responses, and all later responses on the same connection, by ``seconds``."""
        return self._add(Fault(kind, "answer", "delay", delay_s=seconds, times=times))

    def reset_on_answer(self, kind: type[Request[Any]], *, skip: int = 0, times: int | None = 1) -> Fault:
        """Reset the connection instead of sending responses, so that the client does not know the results."""
        return self._add(Fault(kind, "answer", "reset", skip=skip, times=times))

    # ---- faults of all connections -----------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Wait ``seconds`` before each frame is sent to its receiver; 0 ends the delay."""
        self._latency_s = seconds

    def throttle(self, bytes_per_s: float | None, *, slice_bytes: int | None = None) -> None:
        """Limit each connection to ``bytes_per_s`` in each direction; ``throttle(None)`` ends the limit.

        Frames are sent in parts of ``slice_bytes``, or whole if it is None, with a pause after each part.
        """
        self._bytes_per_s, self._part_size = bytes_per_s, slice_bytes

    def black_hole(self) -> None:
        """Accept connections but send no frames, like a network that drops all packets, until ``restore``."""
        self._is_black_hole = True

    def restore(self) -> None:
        """End ``black_hole``, ``refuse``, ``delay`` and ``throttle``; ``reset_every`` and each ``Fault`` continue.

        After ``black_hole``, all connections are reset.
        """
        was_black_hole, self._is_black_hole = self._is_black_hole, False
        self._latency_s, self._bytes_per_s, self._part_size = 0.0, None, None
        if was_black_hole:
            self.reset()
        self._run(self._listen())

    def reset(self) -> None:
        """Reset all connections, so that clients receive a TCP RST."""
        self._run(self._reset_all())

    def reset_every(self, shortest_s: float, longest_s: float) -> None:
        """Reset all connections at random intervals of ``shortest_s`` to ``longest_s``, until ``stop_resets``."""
        self._run(self._start_resets(shortest_s, longest_s))

    def stop_resets(self) -> None:
        """End ``reset_every``."""
        self._run(self._cancel_resets())

    def redirect(self, host: str, port: int) -> None:
        """Connect clients to another broker from now on, like an address that was reused; reset all connections."""
        self._upstream = (host, port)
        self.reset()

    def refuse(self) -> None:
        """Refuse new connections and reset existing ones, like a host whose broker is down, until ``restore``."""
        self._run(self._stop_listening())
        self.reset()

    # ---- connections -------------------------------------------------------------------------------------------

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_TIMEOUT_S)

    async def _listen(self) -> None:
        if self._server is None:
            if self._listener.fileno() < 0:
                self._listener = socket.create_server(("127.0.0.1", self.port))
            self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            # asyncio creates the transport of an accepted connection in the next iteration of the loop, and leaks the
            # socket if the server is closed by then. So stop accepting, wait for one iteration, and then close.
            self._loop.remove_reader(self._listener)
            await asyncio.sleep(0)
            server.close()

    async def _close(self) -> None:
        await self._cancel_resets()
        await self._stop_listening()
        pairs = list(self._pairs)
        await self._reset_all()
        await asyncio.gather(*(pair.task for pair in pairs), return_exceptions=True)

    async def _reset_all(self) -> None:
        for pair in list(self._pairs):
            pair.reset()

    async def _start_resets(self, shortest_s: float, longest_s: float) -> None:
        async def reset_repeatedly() -> None:
            while True:
                await asyncio.sleep(random.uniform(shortest_s, longest_s))  # noqa: S311
                await self._reset_all()

        await self._cancel_resets()
        self._resets = asyncio.ensure_future(reset_repeatedly())

    async def _cancel_resets(self) -> None:
        if self._resets is not None:
            self._resets.cancel()
            await asyncio.wait({self._resets})
            self._resets = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        pair = ConnectionPair(next(self._connection_numbers), task, writer)
        if self._server is None:
            # The connection was accepted before the proxy began to refuse connections.
            pair.reset()
            return
        self._pairs.add(pair)
        try:
            upstream_reader, pair.upstream = await asyncio.open_connection(*self._upstream)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pass_requests(pair, reader, pair.upstream))
                directions.create_task(self._pass_answers(pair, upstream_reader, writer))
        except* (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # If the client or the broker has closed its connection, close the other connection, too.
            pair.reset()
        finally:
            self._pairs.discard(pair)
            pair.reset()

    async def _pass_requests(
        self, pair: ConnectionPair, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        while True:
            data = await read_frame(source)
            try:
                header = read_request_header(memoryview(data))
            except MalformedMessageError:
                await self._write(target, data)
                continue
            request = ProxiedRequest(header.api_key, header.version, header.client_id)
            self._record("request", pair, request, header.correlation_id, data)
            for fault in self._claiming_faults("request", request.api_key):
                if fault.action == "repeat":
                    pair.pending[header.correlation_id] = request
                    pair.answers_to_drop.add(header.correlation_id)
                    await self._write(target, data)
                else:
                    data = await self._apply(fault, pair, request, header.correlation_id, data)
                if not data:
                    break
            if data:
                pair.pending[header.correlation_id] = request
                await self._write(target, data)

    async def _pass_answers(
        self, pair: ConnectionPair, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        while True:
            data = await read_frame(source)
            correlation_id = LENGTH.unpack_from(data)[0]
            if correlation_id in pair.answers_to_drop:
                pair.answers_to_drop.discard(correlation_id)
                continue
            request = pair.pending.pop(correlation_id, None)
            if request is None:
                await self._write(target, data)
                continue
            self._record("answer", pair, request, correlation_id, data)
            for fault in self._claiming_faults("answer", request.api_key):
                data = await self._apply(fault, pair, request, correlation_id, data)
                if not data:
                    break
            if data:
                await self._write(target, data)

    def _claiming_faults(self, direction: Direction, api_key: int) -> list[Fault]:
        """Return the faults that apply to a frame; each of them counts the frame."""
        return [fault for fault in self._faults if fault.claim(direction, api_key)]

    async def _apply(
        self, fault: Fault, pair: ConnectionPair, request: ProxiedRequest, correlation_id: int, data: bytes
    ) -> bytes:
        """Apply a fault, and return the frame to send; an empty frame is not sent."""
        match fault.action:
            case "drop":
                return b""
            case "reset":
                pair.reset()
                return b""
            case "hold":
                await fault.wait_released()
            case "delay":
                await asyncio.sleep(fault.delay_s)
            case "edit":
                try:
                    return edit_frame(fault, request, correlation_id, data)
                except Exception as error:  # noqa: BLE001 - the end of the fault's block raises
                    fault.error = error
        return data

    def _record(
        self, direction: Direction, pair: ConnectionPair, request: ProxiedRequest, correlation_id: int, data: bytes
    ) -> None:
        self.frames.append(
            ProxiedFrame(
                direction,
                request.api_key,
                request.version,
                correlation_id,
                time.monotonic(),
                pair.number,
                request.client_id,
                len(data),
                recorded_bytes(data),
            )
        )

    async def _write(self, target: asyncio.StreamWriter, data: bytes) -> None:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if self._is_black_hole:
            # Wait until the connection is reset.
            await asyncio.Event().wait()
        framed = LENGTH.pack(len(data)) + data
        size = self._part_size or len(framed)
        for at in range(0, len(framed), size):
            part = framed[at : at + size]
            target.write(part)
            await target.drain()
            if self._bytes_per_s is not None:
                await asyncio.sleep(len(part) / self._bytes_per_s)
