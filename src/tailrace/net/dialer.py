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
from tailrace.protocol.api_versions import BrokerVersions, api_of
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.message import Request
from tailrace.version import VERSION

__all__ = ["Dialer"]


class Dialer:
    """Opener of connections, all with the same options and TLS context."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._tls = tls_context(config)
        self._timeout_s = config.socket_connection_setup_timeout_ms / 1000

    async def dial(self, host: str, port: int) -> Connection:
        """Open a connection that is ready for requests.

        Raises:
            RequestTimedOutError: the steps took longer than ``socket_connection_setup_timeout_ms``.
            BrokerConnectionError: the host is unknown or not reachable, or the peer is not a Kafka broker.
            AuthenticationError: TLS or SASL failed, on this side or the broker's.
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
            # This response is encoded as version 0, and lists the versions that the broker supports (KIP-511).
            newest = min([newest, *(one.max_version for one in answer.api_keys if one.api_key == request.api.key)])
            answer = await self._ask(connection, request, newest if answer.api_keys else 0)
        if answer.error_code:
            raise UnsupportedVersionError(f"{connection.address}: ApiVersions failed with code {answer.error_code}")
        connection.broker_versions = BrokerVersions(answer)
        try:
            connection.broker_versions.check_consuming()
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{connection.address}: {error}") from None

    async def _log_in(self, connection: Connection, host: str) -> None:
        if not self._config.security_protocol.startswith("SASL"):
            connection.finish_opening(None, None, advice=_SASL_ADVICE)
            return

        async def exchange(request: Request[Any]) -> Any:  # noqa: ANN401 - answers of several kinds
            return await connection.exchange(
                request, connection.broker_versions.version_of(api_of(request)), self._timeout_s
            )

        async def log_in() -> float | None:
            try:
                return await authenticate(exchange, self._config, host)
            except AuthenticationError as error:
                raise AuthenticationError(f"{connection.address}: {error}") from None

        connection.finish_opening(log_in, await log_in())

    async def _ask(self, connection: Connection, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        try:
            return await connection.exchange(request, version, self._timeout_s)
        except AuthenticationError:
            raise
        except TailraceError as error:
            # A message that contains " - " has advice already.
            advice = "" if " - " in str(error) else f" - {_WRONG_LISTENER_ADVICE[self._config.security_protocol]}"
            raise BrokerConnectionError(f"{error}{advice}") from None


_SASL_ADVICE = "if the listener requires SASL, set security_protocol to 'SASL_PLAINTEXT' or 'SASL_SSL'"
_PLAINTEXT_ADVICE = "use security_protocol='PLAINTEXT' (or 'SASL_PLAINTEXT'), or the port of the TLS listener"
_CLIENT_CERTIFICATE_ADVICE = "if the broker requires a client certificate, set ssl_certfile and ssl_keyfile"
_NOT_A_BROKER_ADVICE = "is there a Kafka broker, and is this a listener without TLS?"
_WRONG_LISTENER_ADVICE = {
    "PLAINTEXT": _NOT_A_BROKER_ADVICE,
    "SASL_PLAINTEXT": _NOT_A_BROKER_ADVICE,
    "SSL": _CLIENT_CERTIFICATE_ADVICE,
    "SASL_SSL": _CLIENT_CERTIFICATE_ADVICE,
}
"""Advice by security protocol if the peer does not answer ApiVersions correctly."""


def _tls_failure(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason:
        return f"the listener does not use TLS - {_PLAINTEXT_ADVICE}"
    return f"the TLS handshake failed: {reason} - {_CLIENT_CERTIFICATE_ADVICE}"


def _certificate_failure(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if "mismatch" in reason:
        return (
            f"the certificate is for another host: {reason}"
            " - connect by a name in the certificate (see the broker's advertised.listeners)"
        )
    return (
        f"the certificate is not trusted: {reason} - set ssl_cafile to the certificate of the authority that signed it"
    )


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
        advice = f"if the listener does not use TLS, {_PLAINTEXT_ADVICE}"
        return f"the connection was closed during the TLS handshake - {advice}"
    return f"{text} - is the host up and reachable?"


def _happy_eyeballs(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return the argument with which ``create_connection`` tries the addresses of a name 0.25 s apart (RFC 8305).

    The result is empty if ``host`` is an address, and for event loops such as uvloop's, which do not accept the
    argument and try one address after the other.
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
