"""Connections through a SOCKS5 or HTTP CONNECT proxy, with the package python-socks."""

from __future__ import annotations

import asyncio
import socket
import urllib.parse
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError, TailraceError
from tailrace.installation import install_hint
from tailrace.values import Hidden, Secret

if TYPE_CHECKING:
    from python_socks.async_.asyncio import Proxy as AsyncioProxy

__all__ = ["Proxy"]

_TIMEOUT_S = 86_400.0
"""Time limit of python-socks in seconds; callers have a shorter one."""
_PROXY_AUTHENTICATION_REQUIRED = 407
_NOT_ALLOWED, _HOST_UNREACHABLE, _REFUSED = 2, 4, 5
"""Replies of SOCKS5 (RFC 1928, section 6)."""
_ADVICE = {
    _NOT_ALLOWED: "let the proxy connect to the brokers",
    _HOST_UNREACHABLE: "can the proxy resolve and reach the broker's address?",
    _REFUSED: "is the broker running, and is this its port?",
    403: "let the proxy connect to the brokers and their ports",
}


class Proxy:
    """Proxy through which all connections of a client are opened.

    Args:
        url: value of the option ``proxy_url``.
        connect: function that opens a socket to a host and port, for the connection to the proxy itself.

    Attributes:
        address: host and port of the proxy, for messages.
        resolves_names: True if the proxy resolves the names of brokers, not this client.

    Raises:
        ConfigurationError: the package is missing.
    """

    def __init__(self, url: Hidden, connect: Callable[[str, int], Awaitable[socket.socket]]) -> None:
        if find_spec("python_socks") is None:
            raise ConfigurationError(f"proxy_url needs the package python-socks - {install_hint('proxy')}")
        self._parts = Hidden(urllib.parse.urlsplit(url.value))
        self._connect = connect
        self.address: str = self._parts.value.netloc.rpartition("@")[2]
        self.resolves_names: bool = self._parts.value.scheme != "socks5"

    async def connected_socket(self, host: str, port: int) -> socket.socket:
        """Return a socket that the proxy has connected to a broker; the caller limits the time.

        Raises:
            AuthenticationError: the proxy refused the user name and password of ``proxy_url``.
            BrokerConnectionError: the proxy cannot be reached, refused the connection, or did not reach the broker.
        """
        from python_socks import ProxyConnectionError, ProxyError  # noqa: PLC0415 - an extra

        # Exceptions are raised after the try statement, so that they have no context: local variables of python-socks
        # hold the password.
        canceled: asyncio.CancelledError | None = None
        failure = TailraceError()
        try:
            return await self._client().connect(host, port, timeout=_TIMEOUT_S)
        except asyncio.CancelledError as error:
            canceled = asyncio.CancelledError(*error.args)
        except ProxyConnectionError as error:
            failure = BrokerConnectionError(
                f"the proxy at {self.address} cannot be reached: {error.strerror} - is it running? check proxy_url"
            )
        except (ProxyError, OSError, UnicodeError) as error:
            failure = self._failure(str(error), getattr(error, "error_code", None))
        raise failure if canceled is None else canceled

    def _client(self) -> AsyncioProxy:
        from python_socks import ProxyConnectionError, ProxyType  # noqa: PLC0415 - an extra
        from python_socks.async_.asyncio import Proxy as AsyncioProxy  # noqa: PLC0415

        connect, parts = self._connect, self._parts

        class Direct(AsyncioProxy):
            """Connection to the proxy itself, in the place of another proxy in a chain."""

            async def connect(self, dest_host: str, dest_port: int, *_args: object, **_more: object) -> socket.socket:
                try:
                    return await connect(dest_host, dest_port)
                except OSError as error:
                    raise ProxyConnectionError(error.errno, error.strerror or str(error)) from None

        kind = ProxyType.HTTP if parts.value.scheme == "http" else ProxyType.SOCKS5
        return AsyncioProxy(
            kind,
            parts.value.hostname,
            parts.value.port,
            Secret(urllib.parse.unquote(parts.value.username or "")),
            Secret(urllib.parse.unquote(parts.value.password or "")),
            rdns=True,  # A name is resolved before, if this client resolves names.
            forward=Direct(kind, "", 0),
        )

    def _failure(self, reason: str, code: int | None) -> TailraceError:
        reason = reason.strip() or "no reason"
        where = f"the proxy at {self.address}"
        if code == _PROXY_AUTHENTICATION_REQUIRED or "authentication" in reason:
            return AuthenticationError(f"{where} refused user name and password: {reason} - check those in proxy_url")
        if code is None:
            return BrokerConnectionError(f"{where} gave no valid answer: {reason} - check the scheme in proxy_url")
        advice = _ADVICE.get(code, "can the proxy reach the broker? see its log")
        return BrokerConnectionError(f"{where} did not connect to the broker: {reason} - {advice}")
