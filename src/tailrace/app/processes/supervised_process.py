"""Child process: both ends of the socket to its parent, and its supervision.

A child ends when its socket closes, so a killed parent leaves no children. Each child has its own session, so Ctrl-C in
the terminal sends SIGINT to the parent only, which then stops its children.

In the child of a WorkerPool, a thread reads the socket, so that the child ends even if its event loop is blocked. When
the parent stops the child or ends, the thread reports ``StopMessage``, and later kills the child if the child has not
ended in time.

A child that has sent a status must continue to send messages. If no message arrives for a few seconds, the child counts
as failed; after the silence limit, which its status messages contain, it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, get_args

import anyio

from tailrace.app.health.checks import Check, Status
from tailrace.app.processes.messages import (
    HEADER,
    BeginMessage,
    FailedMessage,
    FromChild,
    ReadyMessage,
    StatisticsMessage,
    StatisticsRequest,
    StatusMessage,
    StopMessage,
    ToChild,
    decode_from_child,
    decode_to_child,
    encode,
    length_of,
)
from tailrace.app.processes.worker_plan import Restarts
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.observe.events import WorkerExited, WorkerStarted
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import AppStatistics
from tailrace.user_exceptions import error_text, first_error

__all__ = [
    "MARGIN_S",
    "Child",
    "Parent",
    "ProcessExit",
    "ProcessOwner",
    "SupervisedProcess",
    "failure_message",
    "next_body",
    "pickled",
    "set_ready_when_settled",
    "unpickled_error",
]

# ---- parent's end: a started child -----------------------------------------------------------------------------------

MARGIN_S = 5.0
"""Seconds that a process may take to end, in addition to ``stop_timeout_ms``."""
_LIMIT = 1 << 20
"""Limit in bytes of the buffer for unread messages; asyncio stops reading when the buffer exceeds twice this limit."""


class Child:
    """Parent's handle of a started child process.

    Attributes:
        pid: process id.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self._process, self._reader, self._writer = process, reader, writer

    @classmethod
    async def start(cls, module: str, spec: Mapping[str, object], environ: Mapping[str, str]) -> Self:
        """Run ``python -m module`` in a new process, and send the process ``spec``.

        Args:
            module: name of the module, which reads ``spec`` by ``Parent.receive_spec``.
            spec: settings for the process.
            environ: environment variables to add to those of this process.

        Raises:
            ConfigurationError: ``spec`` cannot be pickled, or the operating system is not supported.
            OSError: the system cannot start a process now.
        """
        if os.name != "posix":
            raise ConfigurationError(
                "child processes are supported on Linux and macOS only - start `tailrace run` several times instead"
            )
        begin = encode(BeginMessage(pickled({**spec, "path": sys.path})))
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                # Without -P, a module in the working directory would shadow an installed one of the same name.
                *(sys.executable, "-P", "-m", module, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **environ},
                start_new_session=True,
            )
            try:
                reader, writer = await asyncio.open_connection(sock=ours, limit=_LIMIT)
            except BaseException:
                process.kill()
                raise
            stack.pop_all()
        child = cls(process, reader, writer)
        writer.write(begin)
        return child

    def send(self, message: ToChild) -> None:
        """Send a message; do nothing if the connection is closed."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def next_message(self) -> FromChild | None:
        """Return the next message of the child; None if the child has ended."""
        body = await next_body(self._reader)
        return None if body is None else decode_from_child(body)

    async def wait(self) -> int:
        """Wait until the child has ended; return its exit code, or the negated number of the signal that killed it."""
        return await self._process.wait()

    async def wait_or_kill(self, timeout_s: float) -> int:
        """Wait at most ``timeout_s`` seconds for the end of the child, then kill it; return its exit code."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Kill the process if it still runs, wait until it has ended, and close the socket."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self.kill()
                await self._process.wait()
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()


async def next_body(reader: asyncio.StreamReader) -> bytes | None:
    """Return the body of the next message; None if the other process has ended."""
    try:
        return await reader.readexactly(length_of(await reader.readexactly(HEADER)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def pickled(value: object) -> bytes:
    """Pickle a value for another process.

    Raises:
        ConfigurationError: ``value`` cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"the options cannot be sent to another process: {error} - pass only values that can be pickled"
        ) from error


def unpickled_error(error: bytes | None, text: str) -> TailraceError:
    """Return the TailraceError that a child has pickled; if there is none, a new TailraceError with ``text``."""
    if error is None:
        return TailraceError(text)
    try:
        found = pickle.loads(error)  # noqa: S301 - from our own child, over our own socket
    except Exception:  # noqa: BLE001 - a class defined by the user may raise anything when unpickled
        return TailraceError(text)
    return found if isinstance(found, TailraceError) else TailraceError(text)


# ---- child's end: the process that started it ------------------------------------------------------------------------


class Parent:
    """Connection to the process that started this one.

    Args:
        descriptor: file descriptor of the inherited socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self.stop_timeout_s = 20.0
        """Seconds that this process may take to end, without ``MARGIN_S``."""

    def receive_spec(self) -> dict[str, Any]:
        """Return the spec, which is the parent's first message, and set ``sys.path`` to that of the parent."""
        message = self._receive()
        assert isinstance(message, BeginMessage), message
        spec: dict[str, Any] = pickle.loads(message.spec)  # noqa: S301 - from our own parent, over our own socket
        sys.path[:] = spec.pop("path")
        return spec

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the socket as streams, in place of ``listen``; for a child whose event loop runs no user code."""
        self._socket.setblocking(False)
        return await asyncio.open_connection(sock=self._socket, limit=_LIMIT)

    def listen(self, on_message: Callable[[ToChild], None]) -> None:
        """Call ``on_message`` in a thread for each message; the last is ``StopMessage``, even if the parent has ended.

        The thread kills this process if it still runs ``stop_timeout_s`` plus ``MARGIN_S`` seconds after that.
        """
        threading.Thread(target=self._listen, args=(on_message,), name="tailrace parent", daemon=True).start()

    def send(self, message: FromChild) -> None:
        """Send a message; do nothing if the parent has ended."""
        self._send(encode(message))

    def try_send(self, message: FromChild) -> None:
        """Send a message unless the socket's buffer is full; a suspended parent must not block its child."""
        data = encode(message)
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return
        if sent < len(data):
            # A message that was sent in part must be completed, so that later messages can be decoded.
            self._send(data[sent:])

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            return  # The parent has ended, so the thread of ``listen`` ends this process.

    def _listen(self, on_message: Callable[[ToChild], None]) -> None:
        message: ToChild | None = None
        while not isinstance(message, StopMessage):
            message = self._receive() or StopMessage()
            on_message(message)
        threading.Event().wait(self.stop_timeout_s + MARGIN_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _receive(self) -> ToChild | None:
        """Return the next message; None if the parent has ended."""
        header = self._receive_bytes(HEADER)
        body = None if header is None else self._receive_bytes(length_of(header))
        return None if body is None else decode_to_child(body)

    def _receive_bytes(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(size - len(parts))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


def failure_message(error: BaseException) -> FailedMessage:
    """Return the message that reports an error to the parent; only a TailraceError is pickled."""
    error = first_error(error)
    text = error_text(error)
    if not isinstance(error, TailraceError):
        return FailedMessage(None, text)
    try:
        return FailedMessage(pickle.dumps(error, protocol=5), text)
    except Exception:  # noqa: BLE001 - the error may have attributes that cannot be pickled
        return FailedMessage(None, text)


# ---- supervision of one child process, which is restarted when it dies and ended on request --------------------------

_LAST_MESSAGES_S = 1.0
"""Seconds to wait for the last messages of a child that has ended."""

_CHECK_S = 1.0
"""Seconds between two checks for messages of a child; a worker sends a status message as often."""
_SILENT_CHECKS = 3
"""Number of checks without a message after which a child counts as failed.

Checks are counted instead of seconds, because the supervisor's own process may be suspended for a while.
"""

_starts = itertools.count()

_STATUSES: dict[str, Status] = {one: one for one in get_args(Status)}


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """Exit of a process.

    Attributes:
        worker: index of the process.
        start: number of the process start, unique among all starts of all processes.
        exit_code: exit code, or the negated number of the signal that killed the process.
        error: error that the process reported, or None.
        cause: reason why the process could not be started or was killed; empty if neither happened.
    """

    worker: int
    start: int
    exit_code: int
    error: TailraceError | None
    cause: str = ""

    @property
    def reason(self) -> str:
        """Text of ``error``, or ``cause`` if there is no error."""
        return self.cause if self.error is None else str(self.error)

    def __str__(self) -> str:
        outcome = f"killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
        return f"{outcome}: {self.reason}" if self.reason else outcome


class ProcessOwner(Protocol):
    """Owner of supervised processes."""

    def spec(self, worker: int, start: int) -> Mapping[str, object]:
        """Return the settings to send to a process; ``start`` is unique among all starts of all processes."""

    def on_message(self, start: int, message: FromChild) -> None:
        """Receive a message of a process."""

    def on_exit(self, death: ProcessExit, pause_s: float) -> float | None:
        """Return the pause before a restart, such as ``pause_s``; None to wait for ``renew`` or ``end``."""


class SupervisedProcess:
    """Child process that is restarted when it dies, until ``end`` is called.

    Attributes:
        worker: index of the process, from 0.
        child: running process, or None.
        start: number of the last start of the process; -1 before the first start.
        settled: set once the process has reported its start, has died for the first time, or has ended.
        ended: set once the process has ended and is not started again.
        ready: set once the process has reported the status ok or degraded.
        stop_timeout_s: seconds that the process may take to stop; it is killed after ``MARGIN_S`` more seconds.
        restarts: consecutive deaths of the process, and the pauses before its restarts.
        deaths: number of exits that were not requested.
    """

    def __init__(self, worker: int, module: str, owner: ProcessOwner, observer: Observer) -> None:
        self.worker, self._module, self._owner, self._observer = worker, module, owner, observer
        self.child: Child | None = None
        self.start = -1
        self.settled = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.stop_timeout_s = 20.0
        self.restarts = Restarts()
        self.deaths = 0
        self._stop_requested = asyncio.Event()
        self._is_ending = False
        self._last_status: tuple[Status, str] = "starting", ""
        self._error: TailraceError | None = None
        """Error that the current process has reported, or None."""
        self._cause = ""
        self._silence_limit_s: float | None = None
        """Seconds without a message after which the process is killed; None before its first status message."""
        self._silent_checks = 0
        self._requests: dict[int, asyncio.Future[AppStatistics]] = {}
        """Requests for statistics that were not answered yet, by number."""
        self._request_count = 0

    # ---- called by its owner -----------------------------------------------------------------------------------

    def end(self) -> None:
        """Request that the process stops and is not started again; ``ended`` is set afterwards."""
        self._is_ending = True
        self._stop_requested.set()

    def renew(self) -> None:
        """Request that the process stops and is started again; if it waits for a restart, end the wait."""
        self._stop_requested.set()

    async def statistics(self, timeout_s: float) -> AppStatistics | None:
        """Return the statistics of the process; None if it does not run or does not answer in time."""
        if self.child is None:
            return None
        self._request_count += 1
        number = self._request_count
        answer: asyncio.Future[AppStatistics] = asyncio.get_running_loop().create_future()
        self._requests[number] = answer
        self.child.send(StatisticsRequest(number))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._requests[number]

    def check(self) -> Check:
        """Return the health of the process."""
        name, now = f"worker {self.worker}", asyncio.get_running_loop().time()
        status, detail = self._last_status
        # A process that was never ready must not be degraded, because degraded counts as ready.
        unready: Status = "degraded" if self.ready.is_set() else "starting"
        if status == "degraded":
            status = unready
        if self._silent_checks >= _SILENT_CHECKS:
            blocked_s = self._silent_checks * _CHECK_S
            return Check(
                name,
                "failed",
                f"the event loop has been blocked for {blocked_s:.0f} s; after {self._silence_limit_s:g} s, the process"
                " is killed and restarted",
            )
        if self.restarts.is_failing(now):
            deaths = f"the process has died {self.restarts.deaths(now)} times in a row"
            return Check(name, unready, f"{deaths}; {detail}" if detail else deaths)
        return Check(name, status, detail)

    # ---- run ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the process running until ``end`` is called."""
        while not self._is_ending:
            self._stop_requested.clear()
            death = await self._run_once()
            if death is None:
                continue
            self.deaths += 1
            loop = asyncio.get_running_loop()
            pause_s = self._owner.on_exit(death, self.restarts.note_death(loop.time(), random.random()))  # noqa: S311
            restart = "" if pause_s is None else f", restarted after {pause_s:.1f} s"
            self._last_status = "degraded", f"{death}{restart}"
            self._observer.emit(WorkerExited(self.worker, death.exit_code, death.reason, pause_s))
            self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop_requested.wait()
        self.settled.set()
        self.ended.set()

    async def _run_once(self) -> ProcessExit | None:
        """Start the process and wait until it ends; return its exit, or None if the end was requested."""
        self.start, self._error, self._cause = next(_starts), None, ""
        self._silence_limit_s, self._silent_checks = None, 0
        try:
            child = await Child.start(
                self._module, self._owner.spec(self.worker, self.start), {"TAILRACE_WORKER": str(self.worker)}
            )
        except OSError as error:
            # The system may be out of memory, processes or file descriptors for a while.
            return ProcessExit(self.worker, self.start, os.EX_OSERR, None, f"the process could not be started: {error}")
        self.child = child
        self._last_status = "starting", ""
        self.restarts.note_start(asyncio.get_running_loop().time())
        self._observer.emit(WorkerStarted(self.worker, child.pid))
        try:
            exit_code = await self._run_until_exit(child)
        finally:
            self.child, self._silent_checks = None, 0
            await child.close()
        if not self._stop_requested.is_set():
            return ProcessExit(self.worker, self.start, exit_code, self._error, self._cause)
        if exit_code:
            cause = "killed, because it did not stop in time" if exit_code == -signal.SIGKILL else ""
            death = ProcessExit(self.worker, self.start, exit_code, self._error, cause)
            self._observer.emit(WorkerExited(self.worker, exit_code, death.reason, None if self._is_ending else 0.0))
        return None

    async def _run_until_exit(self, child: Child) -> int:
        async with anyio.create_task_group() as tasks:
            reading = anyio.CancelScope()

            async def notice_end() -> None:
                await child.wait()
                # Stop reading even if processes that the child has forked keep the socket open.
                reading.deadline = anyio.current_time() + _LAST_MESSAGES_S

            async def end_on_request() -> None:
                await self._stop_requested.wait()
                child.send(StopMessage())
                await child.wait_or_kill(self.stop_timeout_s + MARGIN_S)

            tasks.start_soon(notice_end)
            tasks.start_soon(self._run_checks, child)
            tasks.start_soon(end_on_request)
            with reading:
                while (message := await child.next_message()) is not None:
                    self._process_message(message)
            exit_code = await child.wait_or_kill(self.stop_timeout_s + MARGIN_S)
            tasks.cancel_scope.cancel()
        return exit_code

    async def _run_checks(self, child: Child) -> None:
        """Count the checks without a message, and kill the process when they reach its silence limit."""
        while True:
            await asyncio.sleep(_CHECK_S)
            if self._silence_limit_s is None:
                continue
            self._silent_checks += 1
            silent_s = self._silent_checks * _CHECK_S
            if (
                self._silent_checks > _SILENT_CHECKS
                and silent_s >= self._silence_limit_s
                and not self._stop_requested.is_set()
            ):
                self._cause = f"killed, because its event loop was blocked for {silent_s:.0f} s"
                child.kill()
                return

    def _process_message(self, message: FromChild) -> None:
        self._silent_checks = 0
        match message:
            case ReadyMessage(stop_timeout_s=stop_timeout_s, status=status):
                self.stop_timeout_s = stop_timeout_s
                self._set_status(status, "")
                self.settled.set()
            case StatusMessage(status=status, detail=detail, silence_s=silence_s):
                self._silence_limit_s = silence_s
                self._set_status(status, detail)
            case FailedMessage(error=error, text=text):
                self._error = unpickled_error(error, text)
            case StatisticsMessage(number=number, statistics=statistics):
                if (answer := self._requests.get(number)) is not None and not answer.done():
                    answer.set_result(statistics)
            case _:
                pass
        self._owner.on_message(self.start, message)

    def _set_status(self, status: str, detail: str) -> None:
        self._last_status = _STATUSES.get(status, "degraded"), detail
        if status in {"ok", "degraded"}:
            self.ready.set()


async def set_ready_when_settled(processes: Iterable[SupervisedProcess], supervisor: Supervisor) -> None:
    """Set ``supervisor.ready`` once each process has reported its start or has died once, unless the pool stops."""
    for one in processes:
        await one.settled.wait()
    if not supervisor.stopping.is_set():
        supervisor.ready.set()
