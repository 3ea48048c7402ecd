"""Worker process of a WorkerPool: it runs the App until the pool stops the process.

This module runs in the child. The App itself handles signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import anyio

from tailrace.app.app import App, load_app
from tailrace.app.health.checks import Health
from tailrace.app.lifecycle import wait_for_any
from tailrace.app.processes.messages import (
    ReadyMessage,
    StatisticsMessage,
    StatisticsRequest,
    StatusMessage,
    StopMessage,
    ToChild,
)
from tailrace.app.processes.supervised_process import Parent, failure_message
from tailrace.app.processes.worker_plan import check_transactional_id, instance_id_template
from tailrace.config import resolve
from tailrace.errors import ConfigurationError, ConsumerStateError, TailraceError
from tailrace.observe.log_format import configure_logging
from tailrace.user_exceptions import error_text

__all__ = ["LabelledLines", "label_output", "main"]

# ---- output of a worker in whole lines, each prefixed with the worker's name -----------------------------------------

_MAX_LINE_BYTES = 1 << 16
"""Number of buffered bytes above which an incomplete line is written as a complete line."""


class LabelledLines(io.RawIOBase):
    """Stream that writes whole lines to the file descriptor ``descriptor``, each prefixed with ``label``."""

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor, self._label = descriptor, label.encode()
        self._incomplete_line = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor of the output."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return True if the output is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Buffer ``data``, and write its complete lines."""
        self._incomplete_line += data
        *lines, rest = bytes(self._incomplete_line).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._incomplete_line = bytearray(rest)
        self._write_lines(lines)
        return len(data)

    def close(self) -> None:
        """Write the incomplete line, if there is one, and close the stream."""
        if not self.closed and self._incomplete_line:
            self._write_lines([bytes(self._incomplete_line)])
            self._incomplete_line.clear()
        super().close()

    def _write_lines(self, lines: list[bytes]) -> None:
        # All lines are written by one call, so that the output of other workers is not mixed in.
        out = memoryview(b"".join(b"%b%b\n" % (self._label, line) for line in lines))
        while out:
            out = out[os.write(self._descriptor, out) :]


def label_output(label: str) -> None:
    """Prefix all output of this process with ``label``: prints, logs and tracebacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue  # A service manager has closed the stream.
        labelled = LabelledLines(stream.fileno(), label)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(labelled), encoding=stream.encoding, errors=stream.errors, line_buffering=True
            ),
        )


# ---- worker process of a WorkerPool: it runs the App until the pool stops the process --------------------------------

_STATUS_INTERVAL_S = 1.0
"""Seconds between status messages, which also show that the event loop is not blocked."""


class _WorkerProcess:
    def __init__(self, parent: Parent, spec: dict[str, Any]) -> None:
        self._parent, self._spec = parent, spec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: App | None = None
        self._stopping = asyncio.Event()
        self._is_stop_requested = threading.Event()
        self._silence_limit_s = 45.0

    def run(self) -> int:
        self._parent.listen(self._process_message)
        try:
            app = self._load()
            app.configure(**self._spec["options"])
            self._set_instance_id(app)
            asyncio.run(self._run_app(app))
        except Exception as error:  # noqa: BLE001 - sent to the pool
            message = failure_message(error)
            self._parent.send(message)
            if message.error is None:
                traceback.print_exc()
            return 1
        return 0

    def _load(self) -> App:
        try:
            return load_app(self._spec["app"])
        except (ImportError, SyntaxError) as error:
            # ConfigurationError is fatal for the pool; a restart would import the same files.
            traceback.print_exc()
            reason = error_text(error)
            raise ConfigurationError(f"{self._spec['app']} cannot be imported: {reason}") from error

    def _set_instance_id(self, app: App) -> None:
        """Give the worker its own ``group_instance_id``, so that it gets its partitions back after a restart."""
        options = app.options
        instance_id = options.get("group_instance_id", os.environ.get("TAILRACE_GROUP_INSTANCE_ID"))
        if (transactions := app.runtime.transactions) is not None:
            check_transactional_id(transactions.transactional_id, self._spec["workers"])
        pool_id = f"{os.getppid()}.{self._spec['pool']}"
        app.configure(group_instance_id=instance_id_template(instance_id, self._spec["workers"], pool_id))
        if instance_id is None and "leave_on_stop" not in options and "TAILRACE_LEAVE_ON_STOP" not in os.environ:
            # The instance id contains the id of this pool, so no later member will use it.
            app.configure(leave_on_stop=True)
        config = resolve(app.options)
        self._parent.stop_timeout_s = config.stop_timeout_ms / 1000
        # After a session timeout without heartbeats, the group has reassigned the partitions of this worker anyway.
        self._silence_limit_s = config.session_timeout_ms / 1000

    async def _run_app(self, app: App) -> None:
        self._loop, self._app = asyncio.get_running_loop(), app
        if self._is_stop_requested.is_set():
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_on_request, app)
            tasks.start_soon(self._report_status, app)
            try:
                await app.run()
            except ConsumerStateError:
                # If the stop was requested while the app started, this error is the expected end.
                if not self._is_stop_requested.is_set():
                    raise
            tasks.cancel_scope.cancel()

    async def _stop_on_request(self, app: App) -> None:
        await self._stopping.wait()
        try:
            await app.stop()
        except TailraceError:
            return  # ``run`` raises the same error.

    async def _report_status(self, app: App) -> None:
        supervisor = app.runtime.supervisor
        if supervisor is None:
            return
        await wait_for_any(supervisor.ready, supervisor.stopping)
        self._parent.send(ReadyMessage(self._parent.stop_timeout_s))
        try:
            await app.wait_ready()
        except TailraceError:
            return  # ``run`` raises the same error.
        while True:
            self._parent.try_send(StatusMessage(*_summary(app.health()), self._silence_limit_s))
            await asyncio.sleep(_STATUS_INTERVAL_S)

    def _process_message(self, message: ToChild) -> None:
        """Process a message of the pool; called in the thread that listens to the socket."""
        if isinstance(message, StopMessage):
            self._is_stop_requested.set()
            self._call_in_loop(self._stopping.set)
        elif isinstance(message, StatisticsRequest):
            self._call_in_loop(self._send_statistics, message.number)

    def _call_in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed.
                self._loop.call_soon_threadsafe(call, *arguments)

    def _send_statistics(self, number: int) -> None:
        if self._app is not None:
            self._parent.try_send(StatisticsMessage(number, self._app.statistics()))


def _summary(health: Health) -> tuple[str, str]:
    """Return the overall status, and the details of the checks with that status; no details for the status ok."""
    reasons = [f"{one.name}: {one.detail}" for one in health.checks if one.status == health.status and one.detail]
    return health.status, "" if health.status == "ok" else "; ".join(reasons)


def main() -> None:
    """Run a worker; the only command-line argument is the file descriptor of the socket."""
    parent = Parent(int(sys.argv[1]))
    spec = parent.receive_spec()
    worker, log_format = os.environ["TAILRACE_WORKER"], spec["log_format"]
    # JSON lines get an empty label, because a prefix would make them invalid; the lines are still written as a whole.
    label_output("" if log_format == "json" else f"worker {worker} | ")
    if spec["log_level"] is not None:
        configure_logging(spec["log_level"], log_format, worker=int(worker))
    raise SystemExit(_WorkerProcess(parent, spec).run())


if __name__ == "__main__":
    main()
