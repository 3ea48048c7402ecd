"""Brokers, metadata and group coordinators of a cluster.

A Cluster runs no background task: MetadataRefresher, which does, refreshes the metadata periodically and after
stale-metadata errors. Several consumers may share a Cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import anyio

from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig, split_address
from tailrace.context_managers import contextmanager
from tailrace.core.backoff import Backoff
from tailrace.core.capabilities import ClusterVersions
from tailrace.core.cluster_metadata import ClusterMetadata, ExpectedBroker
from tailrace.error_codes import name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    MalformedMessageError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
    WrongBrokerError,
    broker_error,
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.connection import Connection
from tailrace.net.dialer import Dialer, wrong_broker
from tailrace.observe.events import (
    ClusterRebootstrapped,
    CoordinatorFound,
    CoordinatorLost,
    CredentialsUnencrypted,
    MetadataRefreshFailed,
    VersionsUnknown,
    WrongBrokerReached,
)
from tailrace.observe.hooks import Observer
from tailrace.protocol.handshake import BrokerVersions, Capability
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import (
    BrokerMetadata,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from tailrace.records import TopicPartition
from tailrace.values import robust_repr

__all__ = ["Cluster", "MetadataRefresher"]

ResultT = TypeVar("ResultT")
ResponseT = TypeVar("ResponseT")

_ANY_NODE = -1
_STAGGER_S = 0.25
"""Time in seconds to wait for an answer before the request is also sent to the next broker or bootstrap address."""
_VERSIONS = ChannelKey(Channel.MAIN, "versions")
"""Connections that are opened to learn the versions of all brokers, and then closed."""
_VERSIONS_S = 2.0
"""Maximum time in seconds to learn the versions of all brokers."""
_MAX_CONCURRENT = 32
"""Maximum number of brokers to which these connections are opened at the same time."""


class Cluster:
    """Brokers of a cluster, with its metadata and group coordinators.

    Attributes:
        topology: latest metadata; an immutable object, which each refresh and ``learn_leader`` replace.
        config: options of the connections.
        observer: receiver of the events.
    """

    def __init__(self, config: ConsumerConfig, observer: Observer | None = None) -> None:
        self.config = config
        self.topology: ClusterMetadata = ClusterMetadata(hides_internal=config.exclude_internal_topics)
        self.observer: Observer = observer or Observer()
        self._brokers: dict[int, Broker] = {}
        self._dialer = Dialer(config, observer)
        self._coordinators: dict[str, int] = {}
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._refresh_lock = asyncio.Lock()
        self._lookup_lock = asyncio.Lock()
        self._refresh_count = 0
        self._requested_topics: frozenset[str] | None = frozenset()
        """Topics of the last Metadata request; None for all."""
        self._refresh_error: TailraceError | None = None
        self._refreshed_at = 0.0
        self._refresh_failures = 0
        """Number of refreshes that failed since the last metadata, for the backoff."""
        self._refresh_not_before = 0.0
        """Time before which no refresh is sent."""
        self._topics_by_owner: dict[object, frozenset[str] | None] = {}
        """Topics of ``watch`` by owner; None for all."""
        self._is_stale = False
        """True if a broker could not be reached since the last metadata, so that it may have another address now."""
        self._on_stale: list[Callable[[], None]] = []
        self._is_closed = False

    @robust_repr
    def __repr__(self) -> str:
        return f"<Cluster {self.topology.cluster_id} {list(self._brokers.values())}>"

    # ---- finding the cluster -----------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """Request metadata from the addresses of ``bootstrap_servers``, and use the first answer.

        While no answer has arrived, the request is sent to the next address every quarter of a second. Each address is
        tried once.

        Raises:
            ConfigurationError: ``bootstrap_servers`` is empty, or another option is invalid.
            AuthenticationError, UnsupportedVersionError: all addresses failed, and at least one with this error.
            BrokerConnectionError: all addresses failed in other ways; the message lists the reasons.
        """
        if not self.config.bootstrap_servers:
            raise ConfigurationError(
                "bootstrap_servers is missing - pass it, such as 'localhost:9092', or set TAILRACE_BOOTSTRAP_SERVERS"
            )
        addresses = [split_address(entry) for entry in self.config.bootstrap_servers]
        if self.config.security_protocol == "SASL_PLAINTEXT" and self.config.sasl_mechanism in {"PLAIN", "OAUTHBEARER"}:
            # PLAIN and OAUTHBEARER send the secret itself; SCRAM and GSSAPI send only a proof of the secret.
            advice = "set security_protocol='SASL_SSL', or sasl_mechanism='SCRAM-SHA-512'"
            self.observer.emit(CredentialsUnencrypted(", ".join(self.config.bootstrap_servers), advice))
        self._update(await _first_of([partial(self._try_address, n, *address) for n, address in enumerate(addresses)]))

    async def reach(self, timeout_s: float) -> None:
        """Retry ``bootstrap`` until a broker answers, for at most ``timeout_s`` seconds.

        Raises:
            ConfigurationError: ``bootstrap_servers`` is empty, or another option is invalid.
            AuthenticationError: TLS or SASL failed.
            UnsupportedVersionError: a broker is too old.
            RequestTimedOutError: the first attempt did not end in time.
            BrokerConnectionError: no broker answered in time; the message has the addresses and the last error.
        """
        addresses = ", ".join(self.config.bootstrap_servers)
        await self.retrying(self.bootstrap, timeout_s=timeout_s, what=f"reaching the cluster at {addresses}")

    async def _try_address(self, number: int, host: str, port: int) -> MetadataResponse:
        await asyncio.sleep(number * _STAGGER_S)
        broker = self._new_broker(BrokerMetadata(-1 - number, host, port))
        try:
            return self._checked(await broker.send(self._metadata_request()), broker.host, broker.port)
        except WrongBrokerError as error:
            self.observer.emit(WrongBrokerReached(broker.address, str(error), error))
            raise
        finally:
            broker.close()

    # ---- metadata ----------------------------------------------------------------------------------------------

    def watch(self, owner: object, topics: Iterable[str] | None) -> None:
        """Include ``topics``, or all topics if None, in each refresh until ``unwatch(owner)``.

        A second call with the same owner replaces the topics.
        """
        self._topics_by_owner[owner] = None if topics is None else frozenset(topics)

    def unwatch(self, owner: object) -> None:
        """End ``watch(owner, ...)``; do nothing if ``watch`` was not called with ``owner``."""
        self._topics_by_owner.pop(owner, None)

    @contextmanager
    def watching(self, topics: Iterable[str] | None) -> Iterator[None]:
        """Include ``topics``, or all topics if None, in each refresh in the context."""
        owner = object()
        self.watch(owner, topics)
        try:
            yield
        finally:
            self.unwatch(owner)

    @property
    def age_s(self) -> float:
        """Seconds since the last metadata was received."""
        return asyncio.get_running_loop().time() - self._refreshed_at

    async def refresh(self) -> None:
        """Request metadata from the known brokers, or from ``bootstrap_servers`` if no known broker answers.

        Concurrent callers share one request and its error. A second request is sent if a topic was watched after the
        first request had been sent. The request is sent at the earliest ``retry_backoff_ms`` after metadata was last
        received; after failures, the pause grows up to ``retry_backoff_max_ms``, however many callers there are.

        Raises:
            BrokerConnectionError: neither a known broker nor a bootstrap address answered.
            AuthenticationError, UnsupportedVersionError: all brokers failed, and at least one with this error.
        """
        count_before = self._refresh_count
        async with self._refresh_lock:
            if self._refresh_count != count_before and self._refresh_error is not None:
                raise copy.copy(self._refresh_error)
            if self._refresh_count != count_before and self._last_request_had_all_watched:
                return
            pause_s = self._refresh_not_before - asyncio.get_running_loop().time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            try:
                await self._request_metadata()
            except TailraceError as error:
                self._refresh_count, self._refresh_error = self._refresh_count + 1, error
                self._refresh_failures += 1
                pause_s = self._backoff.pause_s(self._refresh_failures, random.random())  # noqa: S311 - jitter
                self._refresh_not_before = asyncio.get_running_loop().time() + pause_s
                raise

    async def _request_metadata(self) -> None:
        try:
            self._update(self._checked(await self.send_to_any(self._metadata_request())))
        except BrokerConnectionError as error:
            self.observer.emit(MetadataRefreshFailed(str(error), error))
            # All known brokers are gone or have moved: bootstrap again (KIP-899, KIP-1102).
            await self.bootstrap()
            self.observer.emit(ClusterRebootstrapped(tuple(b.address for b in self._brokers.values())))

    @property
    def _watched_topics(self) -> frozenset[str] | None:
        """Topics that any owner watches; None for all."""
        watched: set[str] = set()
        for topics in self._topics_by_owner.values():
            if topics is None:
                return None
            watched |= topics
        return frozenset(watched)

    @property
    def _last_request_had_all_watched(self) -> bool:
        """True if the last request included all topics that are watched now."""
        watched, requested = self._watched_topics, self._requested_topics
        return requested is None or (watched is not None and watched <= requested)

    def _metadata_request(self) -> MetadataRequest:
        watched = self._requested_topics = self._watched_topics
        return MetadataRequest(None if watched is None else tuple(MetadataTopic(name) for name in sorted(watched)))

    def _checked(self, answer: MetadataResponse, host: str = "", port: int = 0) -> MetadataResponse:
        """Return ``answer``, which came from ``host`` and ``port``, or from any broker of the cluster.

        Raises:
            BrokerConnectionError: ``answer`` has an error code, or lists no brokers, for example because the broker has
                just started.
            WrongBrokerError: ``answer`` is of another cluster than the metadata so far.
        """
        source = f"{host}:{port}" if host else "the cluster"
        if answer.error_code:
            raise BrokerConnectionError(f"{source} returned no metadata ({name_of(answer.error_code)})")
        if not answer.brokers:
            raise BrokerConnectionError(f"{source} lists no brokers - is it still starting?")
        if self.topology.cluster_id is not None:
            expected = ExpectedBroker(self.topology.cluster_id, _ANY_NODE)
            if found := expected.mismatch(answer.cluster_id, {}, (host, port)):
                raise WrongBrokerError(wrong_broker(source, expected, found))
        return answer

    def _update(self, answer: MetadataResponse) -> None:
        self.topology = self.topology.updated(answer)
        self._refresh_count, self._refresh_error = self._refresh_count + 1, None
        self._refreshed_at, self._is_stale = asyncio.get_running_loop().time(), False
        self._refresh_failures, self._refresh_not_before = 0, self._refreshed_at + self._backoff.first_s
        for node in self.topology.brokers.values():
            self._use_address(node)
        for node_id in self._brokers.keys() - self.topology.brokers.keys():
            self._brokers.pop(node_id).close()

    def _new_broker(self, node: BrokerMetadata) -> Broker:
        if self._is_closed:
            raise NodeNotConnectedError("the cluster was closed")
        on_unreachable = None if node.node_id < 0 else self._note_stale
        broker = Broker(node, self._dialer, self.observer, connects_on_demand=True, on_unreachable=on_unreachable)
        if node.node_id >= 0:
            broker.cluster_id = self.topology.cluster_id
        return broker

    def _use_address(self, node: BrokerMetadata) -> None:
        """Add a broker that is unknown, and replace one that has another address than ``node``."""
        known = self._brokers.get(node.node_id)
        if known is None or (known.host, known.port) != (node.host, node.port):
            if known is not None:
                known.close()
            self._brokers[node.node_id] = self._new_broker(node)

    def watch_staleness(self, on_stale: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_stale`` when the metadata may have outdated addresses, until the returned function is called."""
        self._on_stale.append(on_stale)
        return partial(self._on_stale.remove, on_stale)

    def _note_stale(self) -> None:
        self._is_stale = True
        for on_stale in self._on_stale:
            on_stale()

    def learn_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> None:
        """Update the leader of a partition from a broker's response (KIP-951), unless a newer leader is known."""
        self.topology = self.topology.with_leader(partition, leader_id, epoch)

    # ---- brokers -----------------------------------------------------------------------------------------------

    @property
    def newest_versions(self) -> BrokerVersions | None:
        """Versions of the connected broker that knows the newest finalized features; None before any connection."""
        return self._dialer.newest_versions

    def broker(self, node_id: int) -> Broker:
        """Return the broker with this node id; it connects when it is first used.

        Raises:
            NodeNotConnectedError: the latest metadata has no broker with this id.
        """
        broker = self._brokers.get(node_id)
        if broker is None:
            raise NodeNotConnectedError(f"broker {node_id} is not in the cluster (now: {sorted(self._brokers)})")
        return broker

    async def send_to_any(self, request: Request[ResponseT]) -> ResponseT:
        """Send a request to the brokers in random order, connected ones first, and return the first answer.

        While no answer has arrived, the request is sent to the next broker every quarter of a second.

        Raises:
            AuthenticationError, UnsupportedVersionError: all brokers failed, and at least one with this error.
            BrokerConnectionError: all brokers failed in other ways; the message lists the reasons.
        """
        return await self._first_answer(lambda broker: broker.send(request))

    async def check(self, capability: Capability) -> None:
        """Check that the broker that is connected first has a capability.

        Raises:
            AuthenticationError, UnsupportedVersionError: the broker lacks the capability, or all brokers failed and at
                least one with this error.
            BrokerConnectionError: all brokers failed in other ways; the message lists the reasons.
        """
        (await self._first_connected()).broker_versions.check(capability)

    async def versions(self, timeout_s: float = _VERSIONS_S) -> ClusterVersions:
        """Connect to all brokers of the metadata, and return the versions that each offers.

        Brokers that do not answer within ``timeout_s`` seconds are reported by the event VersionsUnknown. If no broker
        answers in this time, wait for the first.

        Raises:
            UnsupportedVersionError: a broker is too old to read from.
            AuthenticationError: all brokers failed, and at least one with this error.
            BrokerConnectionError: all brokers failed in other ways; the message lists the reasons.
        """
        found: dict[int, BrokerVersions] = {}
        failures: dict[int, TailraceError] = {}
        limiter = anyio.CapacityLimiter(_MAX_CONCURRENT)

        async def connect(broker: Broker) -> None:
            async with limiter:
                try:
                    found[broker.id] = (await broker.connection_for(_VERSIONS, timeout_s)).broker_versions
                except TailraceError as error:
                    failures[broker.id] = error

        brokers = {broker.id: broker for broker in self._brokers.values()}
        try:
            with anyio.move_on_after(timeout_s):
                async with anyio.create_task_group() as tasks:
                    for broker in brokers.values():
                        tasks.start_soon(connect, broker)
        finally:
            self.close_owned(_VERSIONS.owner)
        if not found:
            first = await self._first_connected()
            found |= {number: first.broker_versions for number, one in brokers.items() if one.address == first.address}
        names = {number: f"{number} ({broker.address})" for number, broker in sorted(brokers.items())}
        for number, error in failures.items():
            if isinstance(error, UnsupportedVersionError):
                raise UnsupportedVersionError(f"broker {number}: {error}") from error
        late = f"no answer within {timeout_s:.1f} s"
        unreached = {name: str(failures.get(number, late)) for number, name in names.items() if number not in found}
        if unreached:
            self.observer.emit(VersionsUnknown(tuple(unreached), "; ".join(dict.fromkeys(unreached.values()))))
        return ClusterVersions({name: found[number] for number, name in names.items() if number in found}, unreached)

    async def _first_connected(self) -> Connection:
        timeout_s = self.config.request_timeout_ms / 1000
        return await self._first_answer(lambda one: one.connection_for(ChannelKey(Channel.MAIN), timeout_s))

    async def _first_answer(self, ask: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        ordered = sorted(self._brokers.values(), key=lambda one: (not one.is_connected(), random.random()))  # noqa: S311

        async def ask_later(number: int, broker: Broker) -> ResultT:
            await asyncio.sleep(number * _STAGGER_S)
            return await ask(broker)

        return await _first_of([partial(ask_later, number, broker) for number, broker in enumerate(ordered)])

    # ---- coordinators ------------------------------------------------------------------------------------------

    async def coordinator(self, group_id: str) -> Broker:
        """Return the coordinator of a group; look it up if it is unknown. Concurrent callers share one lookup.

        Raises:
            BrokerError: the group has no coordinator at present; the error is retriable.
            GroupAuthorizationFailedError: the principal may not describe the group.
            BrokerConnectionError: no broker answered.
        """
        async with self._lookup_lock:
            # The coordinator of an earlier lookup may have left the cluster.
            if self._coordinators.get(group_id) not in self._brokers:
                await self._look_up(group_id)
        return self.broker(self._coordinators[group_id])

    async def _look_up(self, group_id: str) -> None:
        found = await self.find_coordinator(FindCoordinatorRequest(group_id), f"no coordinator of group {group_id!r}")
        self._coordinators[group_id] = found.id
        self.observer.emit(CoordinatorFound(group_id, found.address))

    async def find_coordinator(self, request: FindCoordinatorRequest, failure: str = "") -> Broker:
        """Request a coordinator from any broker, and return it at the address in the response.

        The metadata has an older address if the coordinator was restarted elsewhere since.

        Args:
            request: request for the coordinator.
            failure: detail of the error if the response has an error code without a message.

        Raises:
            BrokerError: there is no coordinator at present, or the principal may not look it up.
            BrokerConnectionError: no broker answered.
        """
        try:
            answer = await self.send_to_any(request)
        except BrokerConnectionError:
            # The brokers may have new addresses. A Cluster without MetadataRefresher does not learn them otherwise.
            await self.refresh()
            answer = await self.send_to_any(request)
        if answer.error_code:
            raise broker_error(answer.error_code, answer.error_message or failure)
        known = self._brokers.get(answer.node_id)
        found = BrokerMetadata(answer.node_id, answer.host, answer.port, None if known is None else known.rack)
        if known is not None and known.address != f"{answer.host}:{answer.port}":
            with contextlib.suppress(BrokerConnectionError):
                await self.refresh()
        if self._brokers.get(answer.node_id) is known:
            # The metadata of the brokers that were asked may be older than the response.
            self._use_address(found)
        return self.broker(answer.node_id)

    def coordinator_id(self, group_id: str) -> int | None:
        """Return the node id of the group's coordinator; None if it was not looked up, or was forgotten."""
        return self._coordinators.get(group_id)

    def forget_coordinator(self, group_id: str, reason: str) -> None:
        """Forget a coordinator that moved, failed or hangs; the next call of ``coordinator`` looks it up again.

        Args:
            group_id: group of the coordinator.
            reason: reason to report in CoordinatorLost.
        """
        if self._coordinators.pop(group_id, None) is not None:
            self.observer.emit(CoordinatorLost(group_id, reason))

    # ---- retries -----------------------------------------------------------------------------------------------

    async def retrying(self, attempt: Callable[[], Awaitable[ResultT]], *, timeout_s: float, what: str) -> ResultT:
        """Call ``attempt`` until it succeeds, with exponential backoff after failures (KIP-580); return its result.

        If a broker could not be reached, the metadata is refreshed before the next attempt.

        Args:
            attempt: function to call.
            timeout_s: maximum time of all attempts and the pauses between them, in seconds.
            what: name of the operation for error messages, such as "listing offsets".

        Raises:
            AuthenticationError, UnsupportedVersionError, ConfigurationError: an attempt raised this error.
            BrokerError: an attempt raised an error that is not retriable; or the time was over, and the last error was
                retriable.
            BrokerConnectionError: the time was over, and the last attempt raised this error or a subclass.
            MalformedMessageError: the time was over, and the last attempt raised this error.
            RequestTimedOutError: the time was over before the first attempt ended.
        """
        loop, timeout_s = asyncio.get_running_loop(), max(timeout_s, 0.0)
        deadline, failures = loop.time() + timeout_s, 0
        last: TailraceError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    if self._is_stale and self._brokers and isinstance(last, BrokerConnectionError):
                        with contextlib.suppress(BrokerConnectionError):
                            await self.refresh()
                    return await attempt()
            except TimeoutError as error:
                if last is not None:  # The error of the previous attempt explains more than a timeout.
                    raise _timed_out(last, what, timeout_s) from last
                raise RequestTimedOutError(f"{what}: not finished within {timeout_s:.1f} s") from error
            except (AuthenticationError, UnsupportedVersionError, ConfigurationError):
                raise
            except (BrokerConnectionError, BrokerError, MalformedMessageError) as error:
                failures += 1
                pause_s = self._backoff.pause_s(failures, random.random())  # noqa: S311
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                if loop.time() + pause_s >= deadline:
                    raise _timed_out(error, what, timeout_s) from error
                last = error
            await asyncio.sleep(pause_s)

    def close_owned(self, owner: str) -> None:
        """Close the connections to all brokers that ``owner``, a group member or fetch connection, uses alone."""
        for broker in self._brokers.values():
            broker.close_owned(owner)

    @property
    def is_closed(self) -> bool:
        """True after ``close()``."""
        return self._is_closed

    def close(self) -> None:
        """Close all connections; later requests raise NodeNotConnectedError."""
        self._is_closed = True
        for broker in self._brokers.values():
            broker.close()
        self._brokers.clear()


def _timed_out(error: TailraceError, what: str, timeout_s: float) -> TailraceError:
    tried = f"{what}: tried for {timeout_s:.1f} s"
    if isinstance(error, BrokerError):
        return type(error)(error.code, tried if error.detail == what else f"{tried}; last error: {error.detail}")
    keeps_class = isinstance(error, MalformedMessageError | WrongBrokerError)
    kind = type(error) if keeps_class else BrokerConnectionError
    return kind(f"{tried}; last error: {error}")


async def _first_of(attempts: Sequence[Callable[[], Awaitable[ResultT]]]) -> ResultT:
    """Run ``attempts`` concurrently; return the first result, and cancel the other attempts.

    Raises:
        AuthenticationError, UnsupportedVersionError, ConfigurationError: all attempts failed, and at least one with
            this error, which a retry would not resolve.
        WrongBrokerError: all attempts failed in other ways, and at least one with this error.
        BrokerConnectionError: all attempts failed in other ways; the message lists the reasons.
    """
    found: list[ResultT] = []
    failures: list[TailraceError] = []

    async def run(attempt: Callable[[], Awaitable[ResultT]]) -> None:
        try:
            found.append(await attempt())
        except TailraceError as error:
            failures.append(error)
        else:
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for attempt in attempts:
            tasks.start_soon(run, attempt)
    if found:
        return found[0]
    permanent = AuthenticationError | UnsupportedVersionError | ConfigurationError
    permanent_error = next((failure for failure in failures if isinstance(failure, permanent)), None)
    reasons = "; ".join(dict.fromkeys(map(str, failures))) or "the metadata lists none"
    is_elsewhere = any(isinstance(failure, WrongBrokerError) for failure in failures)
    kind = WrongBrokerError if is_elsewhere else BrokerConnectionError
    raise permanent_error or kind(f"no broker answers: {reasons}")


# ---- periodic refresh ------------------------------------------------------------------------------------------------


class MetadataRefresher:
    """Refreshes cluster metadata when it is ``metadata_max_age_ms`` old, on request, and if a broker is unreachable.

    Args:
        cluster: cluster whose metadata is refreshed.
        on_refresh: called after each refresh, even if nothing has changed.
    """

    def __init__(self, cluster: Cluster, on_refresh: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_refresh = on_refresh
        self._max_age_s = cluster.config.metadata_max_age_ms / 1000
        self._backoff = Backoff.of_ms(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
        self._repeat_s = 2 * cluster.config.retry_backoff_max_ms / 1000
        """Time after a requested refresh in which another request counts as a repetition, in seconds."""
        self._requested = AutoResetEvent()

    def ask(self) -> None:
        """Request a refresh, because the metadata is stale or incomplete."""
        self._requested.set()

    async def run_refreshes(self) -> None:
        """Refresh the metadata until canceled; retry after connection errors.

        Raises:
            AuthenticationError, UnsupportedVersionError, ConfigurationError: all brokers failed, and at least one with
                this error.
        """
        stop_watching = self._cluster.watch_staleness(self.ask)
        try:
            await self._refresh_forever()
        finally:
            stop_watching()

    async def _refresh_forever(self) -> NoReturn:
        loop, repetitions, repeated_until = asyncio.get_running_loop(), 0, 0.0
        while True:
            due_at = loop.time() + max(0.0, self._max_age_s - self._cluster.age_s)
            await self._requested.wait(due_at)
            # After a repeated request, the refresh waits for an exponential backoff, because the brokers did not have
            # the requested information yet. A refresh that is due because of the metadata's age is not delayed.
            if is_requested := (now := loop.time()) < due_at:
                repetitions = repetitions + 1 if now < repeated_until else 0
                if repetitions:
                    await asyncio.sleep(min(self._pause_s(repetitions), due_at - now))
            await self._refresh()
            if is_requested:
                repeated_until = loop.time() + self._repeat_s
            self._on_refresh()

    async def _refresh(self) -> None:
        failures = 0
        while True:
            try:
                await self._cluster.refresh()
            except AuthenticationError:
                raise
            except BrokerConnectionError:
                # Cluster.refresh has emitted MetadataRefreshFailed.
                failures += 1
                await asyncio.sleep(self._pause_s(failures))
            else:
                return

    def _pause_s(self, failures: int) -> float:
        return self._backoff.pause_s(failures, random.random())  # noqa: S311
