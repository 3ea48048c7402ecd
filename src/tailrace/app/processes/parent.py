"""The other end of a child's socket: what a child does first, and what it does when its parent is gone.

Rule of this file: it runs in the child. A thread listens, so that even a child whose event loop hangs ends when its
parent has ended: first it is asked to, and when that does not help in time the process is ended as it is.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from tailrace.core.processes.messages import (
    HEADER,
    BeginMessage,
    FailedMessage,
    FromChild,
    StopMessage,
    ToChild,
    decode_to_child,
    encode,
    length_of,
)
from tailrace.errors import TailraceError

__all__ = ["MARGIN_S", "Parent", "failed"]

MARGIN_S = 5.0
"""What a process may take to end on top of what its consumers may."""


class Parent:
    """Whoever has started this process.

    Args:
        descriptor: the socket that was inherited.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self.stop_timeout_s = 20.0
        """How long this process may take to end."""

    def begin(self) -> dict[str, Any]:
        """What to do, as the parent says it; from here on its modules can be imported."""
        message = self._receive()
        assert isinstance(message, BeginMessage), message
        spec: dict[str, Any] = pickle.loads(message.spec)  # noqa: S301 - from our own parent, over our own socket
        sys.path[:] = spec.pop("path")
        return spec

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The socket for an event loop that never hangs, instead of ``listen`` and ``send``."""
        self._socket.setblocking(False)
        return await asyncio.open_connection(sock=self._socket, limit=1 << 20)

    def listen(self, on_message: Callable[[ToChild], None]) -> None:
        """Call ``on_message`` for each message, in a thread; ``StopMessage`` is the last, also when the parent dies."""
        threading.Thread(target=self._listen, args=(on_message,), name="tailrace parent", daemon=True).start()

    def send(self, message: FromChild) -> None:
        """Say something; a parent that is gone hears nothing."""
        self._send(encode(message))

    def beat(self, message: FromChild) -> None:
        """The same, but say nothing where that would have to wait: a parent that sleeps must not hold its child up."""
        said = encode(message)
        try:
            sent = self._socket.send(said, socket.MSG_DONTWAIT)
        except OSError:
            return
        if sent < len(said):
            # What is begun has to be finished, or all that comes later could not be read.
            self._send(said[sent:])

    def _send(self, said: bytes) -> None:
        try:
            self._socket.sendall(said)
        except OSError:
            return  # the listener sees to the end

    def _listen(self, on_message: Callable[[ToChild], None]) -> None:
        message: ToChild | None = None
        while not isinstance(message, StopMessage):
            message = self._receive() or StopMessage()
            on_message(message)
        threading.Event().wait(self.stop_timeout_s + MARGIN_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _receive(self) -> ToChild | None:
        """The next message; None when the parent is gone."""
        header = self._exactly(HEADER)
        body = None if header is None else self._exactly(length_of(header))
        return None if body is None else decode_to_child(body)

    def _exactly(self, size: int) -> bytes | None:
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


def failed(error: BaseException) -> FailedMessage:
    """An error for the parent; of ours as it is, of others what it says."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, TailraceError):
        return FailedMessage(None, text)
    try:
        return FailedMessage(pickle.dumps(error, protocol=5), text)
    except Exception:  # noqa: BLE001 - what an error carries may be anything; what it says is told
        return FailedMessage(None, text)
