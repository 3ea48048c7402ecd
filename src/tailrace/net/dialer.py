"""Opening of connections: TCP, TLS, ApiVersions and SASL, within one deadline.

Every failure is raised as a TailraceError with the address and advice.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
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
from tailrace.version import VERSION

__all__ = ["Dialer"]


class Dialer:
    """Opens connections, all with the same TLS context."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._tls = tls_context(config)
        self._timeout_s = config.socket_connection_setup_timeout_ms / 1000

    async def dial(self, host: str, port: int) -> Connection:
        """Open a connection that is ready for requests.

        Raises:
            BrokerConnectionError: nothing responds, or the peer is not a Kafka broker.
            AuthenticationError: TLS or SASL failed on either side.
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
                sock = await connected_socket(host, port, receive_buffer_bytes=size, local_addr=config.local_addr)
                name = host if self._tls is not None else None
                transport, _ = await loop.create_connection(
                    lambda: connection.frames, sock=sock, ssl=self._tls, server_hostname=name
                )
            else:
                transport, _ = await loop.create_connection(
                    lambda: connection.frames,
                    host,
                    port,
                    ssl=self._tls,
                    local_addr=config.local_addr,
                    **_happy_eyeballs(loop, host),
                )
            keep_alive(transport)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(f"{host}:{port}: {_certificate_failure(error)}") from None
        except ssl.SSLError as error:
            raise AuthenticationError(f"{host}:{port}: {_tls_failure(error)}") from None
        except OSError as error:
            raise BrokerConnectionError(f"{host}:{port}: {_connect_failure(error)}") from None
        except UnicodeError:
            raise BrokerConnectionError(f"{host}:{port}: the host name is invalid - check bootstrap_servers") from None

    async def _agree_on_versions(self, connection: Connection) -> None:
        newest = ApiVersionsRequest.api.versions[-1]
        request = ApiVersionsRequest("tailrace", VERSION)
        answer = await self._ask(connection, request, newest)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # The response lists the supported versions, encoded as version 0 (KIP-511).
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


_NO_SASL = "a listener that requires SASL does this: check security_protocol"
_NO_TLS = "use security_protocol='PLAINTEXT' (or 'SASL_PLAINTEXT'), or the port of the TLS listener"
_ON_TLS = "if the broker requires a client certificate, set ssl_certfile and ssl_keyfile"
_HINTS = {
    "PLAINTEXT": "is there a Kafka broker, and is this a listener without TLS?",
    "SASL_PLAINTEXT": "is there a Kafka broker, and is this a listener without TLS?",
    "SSL": _ON_TLS,
    "SASL_SSL": _ON_TLS,
}


def _tls_failure(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason:
        return f"the listener does not use TLS - {_NO_TLS}"
    return f"the TLS handshake failed: {reason} - {_ON_TLS}"


def _certificate_failure(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if "mismatch" in reason:
        return (
            f"the certificate is for another host: {reason}"
            " - connect by a name in the certificate (see the broker's advertised.listeners)"
        )
    return f"the certificate is not trusted: {reason} - set ssl_cafile to the authority that signed it"


def _connect_failure(error: OSError) -> str:
    text = str(error)
    if isinstance(error, socket.gaierror):
        return (
            f"cannot resolve the host name: {error.strerror} - check bootstrap_servers and the broker's"
            " advertised.listeners"
        )
    if "bind on address" in text:
        return f"{text} - local_addr must be an address of this host, with port 0 unless there is only one connection"
    # If a name has several addresses, asyncio raises one OSError whose text joins the errors of all addresses.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in text:
        return "connection refused - is the broker running, and is this its port?"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return f"the connection was closed during the TLS handshake - if the listener does not use TLS, {_NO_TLS}"
    return f"{text} - is the host up and reachable?"


def _happy_eyeballs(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return the option for trying the addresses of a name a quarter of a second apart (happy eyeballs).

    Event loops other than asyncio's, such as uvloop, lack this option and try one address after the other.
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
