"""Opening of connections: TCP, TLS, ApiVersions and SASL, within one deadline for each address.

Every failure is raised as a TailraceError with the address and advice.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import socket
import ssl
from asyncio.staggered import staggered_race
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from tailrace.config import ConsumerConfig
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
)
from tailrace.installation import VERSION
from tailrace.net.connection import Connection
from tailrace.net.security import TlsFiles, authenticate, token_provider
from tailrace.observe.events import TlsFilesRefused
from tailrace.observe.hooks import Observer
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse, BrokerVersions
from tailrace.protocol.message import Request

__all__ = ["Dialer", "SocketAddress", "connected_socket", "keep_alive", "resolved"]

# ---- addresses of hosts ----------------------------------------------------------------------------------------------

_STAGGER_S = 0.25
"""Time in seconds after which the next address is tried, too."""

_IDLE_S, _INTERVAL_S, _PROBES = 30, 10, 3
"""Keepalive settings that detect a dead peer after 60 seconds; Linux's defaults take more than two hours."""


class SocketAddress(NamedTuple):
    """Address of one socket of a host."""

    family: int
    sockaddr: tuple[Any, ...]


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive, so that a connection to a dead peer is closed."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first option, and some systems lack some of these options.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _IDLE_S),
        (("TCP_KEEPINTVL",), _INTERVAL_S),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        for name in names:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
                break


async def resolved(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses of ``host``, with IPv6 and IPv4 addresses in turn (RFC 8305).

    Raises:
        OSError: the name cannot be resolved.
    """
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        if found.version == 4:
            return [SocketAddress(socket.AF_INET, (host, port))]
        if "%" not in host:
            return [SocketAddress(socket.AF_INET6, (host, port, 0, 0))]
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[SocketAddress]] = {}
    for family, _, _, _, address in entries:
        by_family.setdefault(family, []).append(SocketAddress(family, address))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_family.values()))
    return list(dict.fromkeys(one for one in in_turn if one is not None))


async def connected_socket(
    addresses: Sequence[SocketAddress], *, receive_buffer_bytes: int | None, local_addr: tuple[str, int] | None
) -> tuple[socket.socket, SocketAddress]:
    """Connect to the first of ``addresses`` that accepts, and return the non-blocking socket and the address.

    The next address is tried when an address fails, or after a quarter of a second (RFC 8305).

    Raises:
        OSError: all addresses failed.
    """
    sockets: list[socket.socket] = []
    attempts = [partial(_connect, one, receive_buffer_bytes, local_addr, sockets) for one in addresses]
    chosen: socket.socket | None = None
    try:
        chosen, number, errors = await staggered_race(attempts, _STAGGER_S)
    finally:
        for one in sockets:
            if one is not chosen:
                one.close()
    if chosen is not None and number is not None:
        return chosen, addresses[number]
    failures = {str(error): error for error in errors if error is not None}
    if len(failures) == 1:
        raise next(iter(failures.values()))
    raise OSError(f"Multiple exceptions: {', '.join(failures)}")


async def _connect(
    address: SocketAddress,
    receive_buffer_bytes: int | None,
    local_addr: tuple[str, int] | None,
    sockets: list[socket.socket],
) -> socket.socket:
    """Connect to ``address``, and add the socket to ``sockets``, which the caller closes."""
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    sockets.append(sock)
    sock.setblocking(False)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    if local_addr is not None:
        _bind(sock, local_addr)
    await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
    return sock


def _bind(sock: socket.socket, local_addr: tuple[str, int]) -> None:
    try:
        sock.bind(local_addr)
    except OSError as error:
        # The dialer recognizes the error by these words, which asyncio uses, too.
        raise OSError(
            error.errno, f"error while attempting to bind on address {local_addr}: {error.strerror}"
        ) from None


# ---- opening of connections: TCP, TLS, ApiVersions and SASL, within one deadline for each address --------------------


class _ClosedError(BrokerConnectionError):
    """The connection was closed before ApiVersions was answered."""


class _DialProgress:
    """Progress of the attempt to open a connection."""

    address: SocketAddress | None = None
    """Address that has accepted the connection; None if none has."""
    is_logging_in: bool = False
    """True once TLS and ApiVersions have succeeded."""


class Dialer:
    """Opener of connections, all with the same options."""

    def __init__(self, config: ConsumerConfig, observer: Observer | None = None) -> None:
        self.config = config
        emit = (observer or Observer()).emit
        self._tls = TlsFiles(config, lambda reason: emit(TlsFilesRefused(reason)))
        self._token_provider = token_provider(config)
        self._timeout_s = config.socket_connection_setup_timeout_ms / 1000
        self._failed_at: dict[tuple[str, int], dict[SocketAddress, float]] = {}
        """Times at which addresses of a host and port have failed since their last success."""
        self._old: set[tuple[str, int]] = set()
        """Hosts and ports that are asked for ApiVersions in version 0, because they close the connection on others."""

    async def dial(self, host: str, port: int) -> Connection:
        """Open a connection that is ready for requests.

        If the host has several addresses, and one of them accepts the connection but then fails, the others are tried
        (KIP-302). An address that has failed is tried last the next time.

        Raises:
            RequestTimedOutError: the steps took longer than ``socket_connection_setup_timeout_ms`` for each address.
            BrokerConnectionError: the host is unknown or not reachable, or the peer is not a Kafka broker.
            AuthenticationError: TLS or SASL failed, on this side or the broker's.
            UnsupportedVersionError: the broker is too old.
        """
        failures: list[TailraceError] = []
        left = await self._resolve(host, port)
        while True:
            progress = _DialProgress()
            try:
                return await self._open(host, port, left, progress)
            except (BrokerConnectionError, UnsupportedVersionError) as error:
                failures.append(error)
                if progress.address is not None:
                    left.remove(progress.address)
                # Without an address, all of them were tried. Refused credentials would be refused everywhere, and
                # brokers may lock an account after some attempts.
                is_denied = progress.is_logging_in and isinstance(error, AuthenticationError)
                if progress.address is None or not left or is_denied:
                    raise error if is_denied else _combined(failures) from None

    async def _resolve(self, host: str, port: int) -> list[SocketAddress]:
        """Return the addresses of a host; addresses that have failed since their last success are at the end."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await resolved(host, port)
        except TimeoutError:
            raise RequestTimedOutError(f"{host}:{port}: the name was not resolved in {self._timeout_s:.1f} s") from None
        except OSError as error:
            raise BrokerConnectionError(f"{host}:{port}: {_connect_failure(error)}") from None
        except UnicodeError:
            raise BrokerConnectionError(f"{host}:{port}: the host name is invalid - check bootstrap_servers") from None
        failed = self._failed_at.setdefault((host, port), {})
        for address in failed.keys() - set(found):
            del failed[address]
        return sorted(found, key=lambda one: failed.get(one, 0.0))

    async def _open(self, host: str, port: int, addresses: list[SocketAddress], progress: _DialProgress) -> Connection:
        """Open a connection to one of ``addresses``; note in ``progress`` the address that has accepted it.

        Some brokers close the connection on a version of ApiVersions that they do not know, instead of answering with
        error 35. They are asked again in version 0 on a new connection.
        """
        newest = 0 if (host, port) in self._old else ApiVersionsRequest.api.versions[-1]
        try:
            return await self._attempt(host, port, addresses, progress, newest)
        except _ClosedError as error:
            if newest == 0:
                raise BrokerConnectionError(str(error)) from None
            assert progress.address is not None
            try:
                connection = await self._attempt(host, port, [progress.address], progress, 0)
            except _ClosedError:
                raise BrokerConnectionError(f"{error} ApiVersions was sent in versions {newest} and 0.") from None
        if newest not in connection.broker_versions.range_of(ApiVersionsRequest.api):
            self._old.add((host, port))
        return connection

    async def _attempt(
        self, host: str, port: int, addresses: list[SocketAddress], progress: _DialProgress, newest: int
    ) -> Connection:
        connection = Connection(f"{host}:{port}", self.config.client_id)
        failed = self._failed_at.setdefault((host, port), {})
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect(connection, host, port, addresses, progress)
                await self._agree_on_versions(connection, newest)
                progress.is_logging_in = True
                await self._log_in(connection, host)
        except BaseException as error:
            connection.close()
            if progress.address is not None:
                failed[progress.address] = asyncio.get_running_loop().time()
            if isinstance(error, TimeoutError):
                raise RequestTimedOutError(
                    f"{host}:{port}: no connection within {self._timeout_s:.1f} s"
                    " - the host is down, a firewall drops packets, or the broker hangs"
                ) from None
            raise
        assert progress.address is not None
        failed.pop(progress.address, None)
        return connection

    async def _connect(
        self, connection: Connection, host: str, port: int, addresses: list[SocketAddress], progress: _DialProgress
    ) -> None:
        loop, config = asyncio.get_running_loop(), self.config
        try:
            sock, progress.address = await connected_socket(
                addresses, receive_buffer_bytes=config.receive_buffer_bytes, local_addr=config.local_addr
            )
            tls = self._tls.context()
            transport, _ = await loop.create_connection(
                lambda: connection.frames, sock=sock, ssl=tls, server_hostname=None if tls is None else host
            )
            keep_alive(transport)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(f"{host}:{port}: {_certificate_failure(error)}") from None
        except ssl.SSLError as error:
            raise AuthenticationError(f"{host}:{port}: {_tls_failure(error)}") from None
        except OSError as error:
            raise BrokerConnectionError(f"{host}:{port}: {_connect_failure(error)}") from None

    async def _agree_on_versions(self, connection: Connection, newest: int) -> None:
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
        if not self.config.security_protocol.startswith("SASL"):
            connection.finish_opening(None, None, advice=_SASL_ADVICE)
            return

        async def exchange(request: Request[Any]) -> Any:  # noqa: ANN401 - answers of several kinds
            version = connection.broker_versions.version_of(request.api)
            return await connection.send(request, self._timeout_s, version=version)

        async def log_in() -> float | None:
            try:
                return await authenticate(exchange, self.config, host, self._token_provider)
            except AuthenticationError as error:
                raise AuthenticationError(f"{connection.address}: {error}") from None

        connection.finish_opening(log_in, await log_in())

    async def _ask(self, connection: Connection, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        try:
            return await connection.send(request, self._timeout_s, version=version)
        except AuthenticationError:
            raise
        except TailraceError as error:
            # A message that contains " - " has advice already.
            advice = "" if " - " in str(error) else f" - {_WRONG_LISTENER_ADVICE[self.config.security_protocol]}"
            kind = _ClosedError if connection.is_closed_by_peer else BrokerConnectionError
            raise kind(f"{error}{advice}") from None


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


def _combined(failures: list[TailraceError]) -> TailraceError:
    """Return the error that reports the failures of the addresses of one host.

    The error is permanent only if all failures are, because a retry may find an address that is down now.
    """
    permanent = AuthenticationError | UnsupportedVersionError
    others = [one for one in failures if not isinstance(one, permanent)]
    texts = list(dict.fromkeys(map(str, others or failures)))
    if len(texts) == 1 or not others:
        return (others or failures)[0]
    return BrokerConnectionError("; ".join(texts))
