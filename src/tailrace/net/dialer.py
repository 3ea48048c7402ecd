"""How a connection is opened: TCP, TLS, the versions of both sides, SASL; within one deadline, or not at all.

Rule of this file: whatever goes wrong on the way ends as one of our errors, says where, and says what to do.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from functools import cache
from typing import Any

from tailrace.config import ConsumerConfig
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
)
from tailrace.net.connection import Connection
from tailrace.net.security import authenticate, tls_context
from tailrace.net.sockets import connected_socket, keep_alive
from tailrace.protocol.api_versions import Offered, api_of
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.message import Request

__all__ = ["Dialer"]


class Dialer:
    """Opens connections as the options say; the TLS context is made once."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._tls = tls_context(config)
        self._timeout_s = config.socket_connection_setup_timeout_ms / 1000

    async def dial(self, host: str, port: int) -> Connection:
        """Open a connection that is ready for requests.

        Raises:
            BrokerConnectionError: nobody answers there, or not as a broker does.
            AuthenticationError: TLS or SASL refused us, or we them.
            UnsupportedVersionError: the broker is too old.
        """
        connection = Connection(f"{host}:{port}", self._config.client_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect(connection, host, port)
                await self._agree_on_versions(connection)
                await self._log_in(connection, host)
        except TimeoutError:
            connection.close()
            raise RequestTimedOutError(
                f"{host}:{port}: no connection within {self._timeout_s:.1f} s"
                " - the host is down, a firewall drops packets, or the broker hangs"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(self, connection: Connection, host: str, port: int) -> None:
        loop, config = asyncio.get_running_loop(), self._config
        try:
            if (size := config.receive_buffer_bytes) is not None:
                made = await connected_socket(host, port, receive_buffer_bytes=size, local_addr=config.local_addr)
                name = host if self._tls is not None else None
                transport, _ = await loop.create_connection(
                    lambda: connection.frames, sock=made, ssl=self._tls, server_hostname=name
                )
            else:
                transport, _ = await loop.create_connection(
                    lambda: connection.frames,
                    host,
                    port,
                    ssl=self._tls,
                    local_addr=config.local_addr,
                    **_in_parallel(loop, host),
                )
            keep_alive(transport)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(f"{host}:{port}: {_distrust(error)}") from None
        except ssl.SSLError as error:
            raise AuthenticationError(f"{host}:{port}: {_tls_complaint(error)}") from None
        except OSError as error:
            raise BrokerConnectionError(f"{host}:{port}: {_connect_complaint(error)}") from None
        except UnicodeError:
            raise BrokerConnectionError(
                f"{host}:{port}: that cannot be a host's name - check bootstrap_servers"
            ) from None

    async def _agree_on_versions(self, connection: Connection) -> None:
        newest = ApiVersionsRequest.api.versions[-1]
        request = ApiVersionsRequest("tailrace", _version())
        answer = await self._ask(connection, request, newest)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # It names the versions that it does take, in a shape that everybody can read.
            newest = min([newest, *(one.max_version for one in answer.api_keys if one.api_key == request.api.key)])
            answer = await self._ask(connection, request, newest if answer.api_keys else 0)
        if answer.error_code:
            raise UnsupportedVersionError(f"{connection.address}: ApiVersions failed with code {answer.error_code}")
        connection.offered = Offered(answer)
        try:
            connection.offered.check_consuming()
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{connection.address}: {error}") from None

    async def _log_in(self, connection: Connection, host: str) -> None:
        if not self._config.security_protocol.startswith("SASL"):
            connection.opened(None, None, hint=_NO_SASL)
            return

        async def exchange(request: Request[Any]) -> Any:  # noqa: ANN401 - answers of several kinds
            return await connection.exchange(request, connection.offered.version_of(api_of(request)), self._timeout_s)

        async def log_in() -> float | None:
            try:
                return await authenticate(exchange, self._config, host)
            except AuthenticationError as error:
                raise AuthenticationError(f"{connection.address}: {error}") from None

        connection.opened(log_in, await log_in())

    async def _ask(self, connection: Connection, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        try:
            return await connection.exchange(request, version, self._timeout_s)
        except AuthenticationError:
            raise
        except TailraceError as error:
            hint = "" if " - " in str(error) else f" - {_HINTS[self._config.security_protocol]}"
            raise BrokerConnectionError(f"{error}{hint}") from None


_NO_SASL = "a listener that wants SASL does so: check security_protocol"
_NO_TLS = "use security_protocol='PLAINTEXT' (or 'SASL_PLAINTEXT'), or the port of the TLS listener"
_ON_TLS = "if the broker wants a certificate of ours, set ssl_certfile and ssl_keyfile"
_HINTS = {
    "PLAINTEXT": "is there a Kafka broker, and is this a listener without TLS?",
    "SASL_PLAINTEXT": "is there a Kafka broker, and is this a listener without TLS?",
    "SSL": _ON_TLS,
    "SASL_SSL": _ON_TLS,
}


def _tls_complaint(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason:
        return f"it does not speak TLS - {_NO_TLS}"
    return f"the TLS handshake failed: {reason} - {_ON_TLS}"


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if "mismatch" in reason:
        return (
            f"its certificate is another host's: {reason}"
            " - connect by a name that it has (see the broker's advertised.listeners)"
        )
    return f"its certificate is not trusted: {reason} - set ssl_cafile to the authority that signed it"


def _connect_complaint(error: OSError) -> str:
    text = str(error)
    if isinstance(error, socket.gaierror):
        return (
            f"the name cannot be resolved: {error.strerror} - check bootstrap_servers, or the broker's advertised name"
        )
    if "bind on address" in text:
        return f"{text} - local_addr has to be an address of this host, and port 0 unless one connection is all"
    # Of a name with several addresses, asyncio gives the refusals as one text.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in text:
        return "connection refused - is the broker running, and is this its port?"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return f"it hung up when we spoke TLS - if this is a listener without TLS, {_NO_TLS}"
    return f"{text} - is the host up, and is there a way to it?"


def _in_parallel(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """All addresses of a name, IPv6 and IPv4, the second a quarter of a second after the first.

    A loop that is not asyncio's own, such as uvloop, tries them one after the other and knows no such option.
    """
    if _is_address(host) or not isinstance(loop, asyncio.BaseEventLoop):
        return {}
    return {"happy_eyeballs_delay": 0.25}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - imports e-mail and archives

    try:
        return version("tailrace")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
