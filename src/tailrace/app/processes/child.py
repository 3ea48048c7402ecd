"""A process of ours: started, spoken to over a socket, waited for.

Rule of this file: a child lives only as long as the socket does, so a parent that is killed leaves none behind; and it
has a session of its own, so a Ctrl-C in the terminal is heard by the parent alone, which then ends its children in
good order.
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

from tailrace.core.processes.messages import (
    HEADER,
    BeginMessage,
    FromChild,
    ToChild,
    decode_from_child,
    encode,
    length_of,
)
from tailrace.errors import ConfigurationError, TailraceError

__all__ = ["Child", "pickled", "unpickled"]

_LIMIT = 1 << 20
"""How much waits in this process for ``next_message``; the rest waits in the child."""


class Child:
    """One started process.

    Attributes:
        pid: its number.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self._process, self._reader, self._writer = process, reader, writer

    @classmethod
    async def start(cls, module: str, spec: Mapping[str, object], environ: Mapping[str, str]) -> Self:
        """Run ``main()`` of ``module`` in a process of its own and give it ``spec``.

        Raises:
            ConfigurationError: ``spec`` cannot be pickled, or this system has no such processes.
        """
        if os.name != "posix":
            raise ConfigurationError("several processes need Linux or macOS - run several of `tailrace run` instead")
        begin = encode(BeginMessage(pickled({**spec, "path": sys.path})))
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                # Without -P a module of the working directory would take the place of any that is imported.
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
        """Say something; a child that has ended hears nothing."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def next_message(self) -> FromChild | None:
        """What it says next; None when it has ended."""
        try:
            size = length_of(await self._reader.readexactly(HEADER))
            return decode_from_child(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def ended(self) -> int:
        """Wait for its end; gives its exit code, or the signal's number below 0."""
        return await self._process.wait()

    async def ended_within(self, timeout_s: float) -> int:
        """Wait for its end, and kill it when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def kill(self) -> None:
        """End it now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def bury(self) -> None:
        """Let nothing of it be left: no process, no zombie, no socket."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self.kill()
                await self._process.wait()
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()


def pickled(value: object) -> bytes:
    """A value for another process.

    Raises:
        ConfigurationError: something in it does not go over.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"this does not go over to another process: {error}"
            " - give options that are plain values, and let the app make the rest where it runs"
        ) from error


def unpickled(error: bytes | None, text: str) -> TailraceError:
    """The error that a child has told of, or what it says, where its class is one that only the child has."""
    if error is None:
        return TailraceError(text)
    try:
        found = pickle.loads(error)  # noqa: S301 - from our own child, over our own socket
    except Exception:  # noqa: BLE001 - a class of the app's own may raise anything when it is made anew
        return TailraceError(text)
    return found if isinstance(found, TailraceError) else TailraceError(text)
