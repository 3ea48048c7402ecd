"""Child's end of the socket to its parent.

This module runs in the child. A thread reads the socket, so that the child ends even if its event loop is blocked. When
the parent stops the child or ends, the thread reports ``StopMessage``, and later kills the child if the child has not
ended in time.
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

from tailrace.app.processes.messages import (
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
from tailrace.user_exceptions import error_text

__all__ = ["MARGIN_S", "Parent", "failure_message"]

MARGIN_S = 5.0
"""Seconds that a process may take to end, in addition to ``stop_timeout_ms``."""


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
        return await asyncio.open_connection(sock=self._socket, limit=1 << 20)

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
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = error_text(error)
    if not isinstance(error, TailraceError):
        return FailedMessage(None, text)
    try:
        return FailedMessage(pickle.dumps(error, protocol=5), text)
    except Exception:  # noqa: BLE001 - the error may have attributes that cannot be pickled
        return FailedMessage(None, text)
