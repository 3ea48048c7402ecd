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
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from tailrace.config import ClientConfig
from tailrace.core.cluster_metadata import ExpectedBroker
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
    WrongBrokerError,
)
from tailrace.installation import VERSION
from tailrace.net.connection import Connection
from tailrace.net.security import (
    TlsFiles,
    authenticate,
    check_password_file,
    token_provider,
)
from tailrace.observe.events import TlsFilesRefused
from tailrace.observe.hooks import Observer
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse, BrokerVersions
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import DescribeClusterRequest, MetadataRequest
from tailrace.values import Hidden

if TYPE_CHECKING:
    from tailrace.net.proxy import Proxy

__all__ = ["Dialer", "SocketAddress", "connected_socket", "keep_alive", "resolved", "wrong_broker"]

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
    addresses: Sequence[SocketAddress],
    *,
    receive_buffer_bytes: int | None,
    local_addr: tuple[str, int] | None,
    proxy: Proxy | None = None,
) -> tuple[socket.socket, SocketAddress]:
    """Connect to the first of ``addresses`` that accepts, and return the non-blocking socket and the address.

    The next address is tried when an address fails, or after a quarter of a second (RFC 8305).

    Raises:
        OSError: all addresses failed.
        BrokerConnectionError: all addresses failed through the proxy.
    """
    sockets: list[socket.socket] = []
    if proxy is None:
        attempts = [partial(_connect, one, receive_buffer_bytes, local_addr, sockets) for one in addresses]
    else:
        attempts = [partial(_connect_through, proxy, one, sockets) for one in addresses]
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
    if proxy is not None:
        raise _combined([one for one in failures.values() if isinstance(one, TailraceError)])
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


async def _connect_through(proxy: Proxy, address: SocketAddress, sockets: list[socket.socket]) -> socket.socket:
    sock = await proxy.connected_socket(*address.sockaddr[:2])
    sockets.append(sock)
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
    """Progress of the attempt to open a connection.

    Attributes:
        expected: broker to reach; None to accept any.
    """

    def __init__(self, expected: ExpectedBroker | None) -> None:
        self.expected = expected

    address: SocketAddress | None = None
    """Address that has accepted the connection; None if none has."""
    is_logging_in: bool = False
    """True once TLS and ApiVersions have succeeded."""


class Dialer:
    """Opener of connections, all with the same options."""

    def __init__(self, config: ClientConfig, observer: Observer | None = None) -> None:
        self.config = config
        emit = (observer or Observer()).emit
        self._tls = TlsFiles(config, lambda reason: emit(TlsFilesRefused(reason)))
        self._token_provider = token_provider(config, emit)
        check_password_file(config)
        self._has_signed_in = False
        self._timeout_s = config.socket_connection_setup_timeout_ms / 1000
        self._proxy = self._new_proxy()
        self._failed_at: dict[tuple[str, int], dict[SocketAddress, float]] = {}
        """Times at which addresses of a host and port have failed since their last success."""
        self._closings: dict[tuple[str, int], int] = {}
        """Number of connections that a host and port has closed on a version of ApiVersions that it offers."""
        self._newest_known: dict[tuple[str, int], int] = {}
        """Newest version of ApiVersions that a host and port supports, which saves the answer that refuses a newer."""
        self._newest_known_of_any = ApiVersionsRequest.api.versions[-1]
        """Newest version of ApiVersions that the last broker supports."""
        self.newest_versions: BrokerVersions | None = None
        """Versions of the broker that knows the newest finalized features; None before the first connection."""

    def _new_proxy(self) -> Proxy | None:
        if self.config.proxy_url is None:
            return None
        from tailrace.net.proxy import Proxy  # noqa: PLC0415 - imports urllib

        async def connect(host: str, port: int) -> socket.socket:
            return (await self._connected_socket(await resolved(host, port)))[0]

        return Proxy(Hidden(self.config.proxy_url), connect)

    async def _connected_socket(
        self, addresses: Sequence[SocketAddress], proxy: Proxy | None = None
    ) -> tuple[socket.socket, SocketAddress]:
        return await connected_socket(
            addresses,
            receive_buffer_bytes=self.config.receive_buffer_bytes,
            local_addr=self.config.local_addr,
            proxy=proxy,
        )

    async def dial(self, host: str, port: int, expected: ExpectedBroker | None = None) -> Connection:
        """Open a connection that is ready for requests, and check that it reaches the ``expected`` broker.

        If the host has several addresses, and one of them accepts the connection but then fails, the others are tried
        (KIP-302). An address that has failed is tried last the next time.

        Raises:
            RequestTimedOutError: the steps took longer than ``socket_connection_setup_timeout_ms`` for each address.
            BrokerConnectionError: the host is unknown or not reachable, or the peer is not a Kafka broker.
            WrongBrokerError: another broker than ``expected`` has answered.
            AuthenticationError: TLS or SASL failed, on this side or the broker's.
            UnsupportedVersionError: the broker is too old.
        """
        failures: list[TailraceError] = []
        left = await self._resolve(host, port)
        while True:
            progress = _DialProgress(expected)
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
        if self._proxy is not None and self._proxy.resolves_names:
            return [SocketAddress(socket.AF_UNSPEC, (host, port))]
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
        newest = self._newest_known.get((host, port), self._newest_known_of_any)
        if self._closings.get((host, port), 0) >= _CLOSINGS:
            newest = 0
        try:
            return await self._attempt(host, port, addresses, progress, newest)
        except _ClosedError as error:
            if newest == 0:
                raise BrokerConnectionError(str(error)) from None
            assert progress.address is not None
            try:
                connection = await self._attempt(host, port, [progress.address], progress, 0)
            except _ClosedError:
                reason, _, advice = str(error).partition(" - ")
                raise BrokerConnectionError(
                    f"{reason} on ApiVersions in version {newest}, and again in version 0 - {advice}"
                ) from None
        if newest in connection.broker_versions.range_of(ApiVersionsRequest.api):
            # It was closed by chance, or the broker offers more than it supports.
            self._closings[host, port] = self._closings.get((host, port), 0) + 1
        return connection

    async def _attempt(
        self, host: str, port: int, addresses: list[SocketAddress], progress: _DialProgress, newest: int
    ) -> Connection:
        connection = Connection(f"{host}:{port}", self.config.client_id)
        failed = self._failed_at.setdefault((host, port), {})
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect(connection, host, port, addresses, progress)
                is_checked = await self._agree_on_versions(connection, newest, progress.expected)
                progress.is_logging_in = True
                await self._log_in(connection, host)
                if progress.expected is not None and not is_checked:
                    await self._check_identity(connection, host, port, progress.expected)
        except BaseException as error:
            connection.close()
            if progress.address is not None:
                failed[progress.address] = asyncio.get_running_loop().time()
            if isinstance(error, TimeoutError):
                raise RequestTimedOutError(f"{host}:{port}: {self._took_too_long(progress)}") from None
            raise
        assert progress.address is not None
        failed.pop(progress.address, None)
        self._note_versions(host, port, connection.broker_versions)
        return connection

    def _took_too_long(self, progress: _DialProgress) -> str:
        way = "" if self._proxy is None else f" through the proxy at {self._proxy.address}"
        if not progress.is_logging_in:
            what, causes = "no connection", "the host is down, a firewall drops packets, or the broker hangs"
        elif self._token_provider is None:
            what, causes = "not signed in", "the broker hangs, or a service that it asks does"
        else:
            what, causes = "not signed in", "sasl_oauth_token_provider or the broker takes too long"
        return f"{what} within {self._timeout_s:.1f} s{way} - {causes}"

    async def _connect(
        self, connection: Connection, host: str, port: int, addresses: list[SocketAddress], progress: _DialProgress
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, progress.address = await self._connected_socket(addresses, self._proxy)
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
        except BrokerConnectionError as error:  # of the proxy
            raise type(error)(f"{host}:{port}: {error}") from None

    async def _agree_on_versions(self, connection: Connection, newest: int, expected: ExpectedBroker | None) -> bool:
        """Request the versions of the broker; return True if the broker has checked that it is ``expected``."""
        request = ApiVersionsRequest("tailrace", VERSION)
        if expected is not None and expected.node_id >= 0:
            request = replace(request, cluster_id=expected.cluster_id, node_id=expected.node_id)
        answer = await self._ask(connection, request, newest)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # This response is encoded as version 0, and lists the versions that the broker supports (KIP-511).
            of_broker = (one.max_version for one in answer.api_keys if one.api_key == request.api.key)
            newest = min([newest, *of_broker]) if answer.api_keys else 0
            answer = await self._ask(connection, request, newest)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and expected is not None:
            raise WrongBrokerError(wrong_broker(connection.address, expected, "another broker"))
        if answer.error_code:
            raise UnsupportedVersionError(
                f"{connection.address}: ApiVersions failed with {name_of(answer.error_code)} (code {answer.error_code})"
                " - is this a Kafka broker, and is it sound?"
            )
        connection.broker_versions = BrokerVersions(answer)
        try:
            connection.broker_versions.check_consuming()
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{connection.address}: {error}") from None
        return newest >= _CHECKS_IDENTITY and request.cluster_id is not None

    async def _check_identity(self, connection: Connection, host: str, port: int, expected: ExpectedBroker) -> None:
        """Check that the broker is ``expected`` by its description of the cluster; it cannot check that itself.

        Raises:
            WrongBrokerError: it is another broker.
        """
        versions = connection.broker_versions
        cluster_id: str | None = None
        brokers: dict[int, tuple[str, int]] | None = None
        if DescribeClusterRequest.api in versions:
            version = versions.version_of(DescribeClusterRequest.api)
            described = await connection.send(DescribeClusterRequest(), self._timeout_s, version=version)
            if not described.error_code:
                cluster_id, brokers = (
                    described.cluster_id,
                    {one.broker_id: (one.host, one.port) for one in described.brokers},
                )
        if brokers is None:
            version = versions.version_of(MetadataRequest.api)
            metadata = await connection.send(MetadataRequest(()), self._timeout_s, version=version)
            cluster_id, brokers = metadata.cluster_id, {one.node_id: (one.host, one.port) for one in metadata.brokers}
        if found := expected.mismatch(cluster_id, brokers, (host, port)):
            raise WrongBrokerError(wrong_broker(connection.address, expected, found))

    def _note_versions(self, host: str, port: int, versions: BrokerVersions) -> None:
        of_broker = versions.range_of(ApiVersionsRequest.api)
        if of_broker:
            newest = min(of_broker[-1], ApiVersionsRequest.api.versions[-1])
            self._newest_known[host, port] = self._newest_known_of_any = newest
        if self.newest_versions is None or versions.finalized_epoch >= self.newest_versions.finalized_epoch:
            self.newest_versions = versions

    async def _log_in(self, connection: Connection, host: str) -> None:
        if not self.config.security_protocol.startswith("SASL"):
            connection.finish_opening(None, None, advice=_SASL_ADVICE)
            return

        async def exchange(request: Request[Any]) -> Any:  # noqa: ANN401 - answers of several kinds
            version = connection.broker_versions.version_of(request.api)
            return await connection.send(request, self._timeout_s, version=version)

        async def log_in() -> float | None:
            try:
                lifetime_s = await authenticate(
                    exchange, self.config, host, self._token_provider, has_signed_in=self._has_signed_in
                )
            except AuthenticationError as error:
                raise AuthenticationError(f"{connection.address}: {error}") from None
            self._has_signed_in = True
            return lifetime_s

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


_CLOSINGS = 2
"""Number of closed connections after which a broker that offers too much is asked for ApiVersions in version 0."""
_CHECKS_IDENTITY = 5
"""First version of ApiVersions in which the broker checks the ids of cluster and node (KIP-1242)."""


def wrong_broker(address: str, expected: ExpectedBroker, found: str) -> str:
    """Return the message of a WrongBrokerError; ``found`` is the broker that has answered at ``address``."""
    node = "any broker" if expected.node_id < 0 else f"broker {expected.node_id}"
    return (
        f"{address}: {found} answered instead of {node} of cluster {expected.cluster_id}, so the connection was closed"
        " - check where the address leads (DNS, load balancer, advertised.listeners); if the cluster was replaced,"
        " restart this process"
    )


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
    if "unsupported protocol" in reason or "protocol version" in reason:
        return "the listener does not offer TLS 1.2 or newer - change the broker's ssl.enabled.protocols"
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
