"""Child process with a socket to its parent.

A child ends when its socket closes, so a killed parent leaves no children. Each child has its own session, so Ctrl-C in
the terminal sends SIGINT to the parent only, which then stops its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Self

import anyio

from tailrace.app.processes.messages import (
    HEADER,
    BeginMessage,
    FromChild,
    ToChild,
    decode_from_child,
    encode,
    length_of,
)
from tailrace.errors import ConfigurationError, TailraceError

__all__ = ["Child", "pickled", "unpickled_error"]

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
        try:
            size = length_of(await self._reader.readexactly(HEADER))
            return decode_from_child(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

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
