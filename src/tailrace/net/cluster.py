"""The brokers together: found by any that lives, kept in view, asked for leaders and coordinators.

Rule of this file: it knows who is who and asks nothing on anybody's behalf but that. It owns no task: whoever uses
it keeps the picture fresh (``refresh_if_stale``), and several consumers may share one. What is tried again is tried
by ``retrying``, which knows the deadline of the call it serves.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from tailrace.config import ConsumerConfig, split_address
from tailrace.core.backoff import Backoff
from tailrace.core.cluster_metadata import ClusterMetadata
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
    broker_error,
)
from tailrace.net.broker import Broker
from tailrace.net.dialer import Dialer
from tailrace.observe.events import (
    ClusterRebootstrapped,
    CoordinatorFound,
    CoordinatorLost,
    CredentialsUnencrypted,
    MetadataRefreshFailed,
)
from tailrace.observe.hooks import Observer
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import (
    BrokerMetadata,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from tailrace.records import TopicPartition

__all__ = ["Cluster"]

ResultT = TypeVar("ResultT")
ResponseT = TypeVar("ResponseT")

_STAGGER_S = 0.25
"""How long a broker is waited for before the next is asked beside it, where any will do."""


class Cluster:
    """The brokers, and what they say of topics and groups.

    Attributes:
        topology: the newest picture; it is replaced, never changed.
        config: the options that connections are made with.
    """

    def __init__(self, config: ConsumerConfig, observer: Observer | None = None) -> None:
        self.config = config
        self.topology = ClusterMetadata(hides_internal=config.exclude_internal_topics)
        self._observer = observer or Observer()
        self._dialer = Dialer(config)
        self._brokers: dict[int, Broker] = {}
        self._coordinators: dict[str, int] = {}
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._refreshing = asyncio.Lock()
        self._looking_up = asyncio.Lock()
        self._asked = 0
        self._asked_for: frozenset[str] | None = frozenset()
        """The topics that the last picture was asked for; None for all there are."""
        self._failure: TailraceError | None = None
        self._refreshed_at = 0.0
        self._topics: dict[object, frozenset[str] | None] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Cluster {self.topology.cluster_id} {list(self._brokers.values())}>"

    # ---- finding the cluster -----------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """Reach the cluster by any of ``bootstrap_servers``; one round, no address twice.

        Raises:
            ConfigurationError: there are no addresses.
            AuthenticationError: a broker refused us.
            UnsupportedVersionError: a broker is too old.
            BrokerConnectionError: none of them answers; the text says of each why.
        """
        if not self.config.bootstrap_servers:
            raise ConfigurationError(
                "bootstrap_servers is missing - give it, such as 'localhost:9092', or set TAILRACE_BOOTSTRAP_SERVERS"
            )
        addresses = [split_address(entry) for entry in self.config.bootstrap_servers]
        if self.config.security_protocol == "SASL_PLAINTEXT" and self.config.sasl_mechanism in {"PLAIN", "OAUTHBEARER"}:
            # SCRAM and GSSAPI send a proof, these two the secret itself.
            advice = "set security_protocol='SASL_SSL', or sasl_mechanism='SCRAM-SHA-512'"
            self._observer.emit(CredentialsUnencrypted(", ".join(self.config.bootstrap_servers), advice))
        self._take(await _first_of([partial(self._try_address, n, *address) for n, address in enumerate(addresses)]))

    async def reach(self, timeout_s: float) -> None:
        """Bootstrap until a broker answers.

        Raises:
            ConfigurationError: there are no addresses.
            AuthenticationError: a broker refused us.
            BrokerConnectionError: none answered within ``timeout_s``; the message has the addresses.
        """
        addresses = ", ".join(self.config.bootstrap_servers)
        await self.retrying(self.bootstrap, timeout_s=timeout_s, what=f"reaching the cluster at {addresses}")

    async def _try_address(self, number: int, host: str, port: int) -> MetadataResponse:
        await asyncio.sleep(number * _STAGGER_S)
        broker = self._made(BrokerMetadata(-1 - number, host, port))
        try:
            return _checked(await broker.send(self._question()), broker.address)
        finally:
            broker.close()

    # ---- keeping the picture -----------------------------------------------------------------------------------

    def watch(self, who: object, topics: Iterable[str] | None) -> None:
        """Keep ``topics`` in the picture on behalf of ``who``; None keeps all topics there are."""
        self._topics[who] = None if topics is None else frozenset(topics)

    def unwatch(self, who: object) -> None:
        """What ``who`` watched is not asked for any more on its behalf."""
        self._topics.pop(who, None)

    @property
    def age_s(self) -> float:
        """How old the picture is."""
        return asyncio.get_running_loop().time() - self._refreshed_at

    async def refresh(self) -> None:
        """Ask for a newer picture; callers that come together share what comes of it, and no two follow at once.

        What a question brings that was asked before a topic was watched is not shared with who waits for that topic.

        Raises:
            BrokerConnectionError: neither a known broker nor a bootstrap address answers.
        """
        seen = self._asked
        async with self._refreshing:
            if self._asked != seen and self._failure is not None:
                raise copy.copy(self._failure)
            if self._asked != seen and self._covers_all:
                return
            too_soon_s = self._backoff.first_s - self.age_s
            if too_soon_s > 0:
                await asyncio.sleep(too_soon_s)
            try:
                await self._request_metadata()
            except TailraceError as error:
                self._asked, self._failure = self._asked + 1, error
                raise

    async def _request_metadata(self) -> None:
        try:
            self._take(_checked(await self.send_to_any(self._question()), "the cluster"))
        except BrokerConnectionError as error:
            self._observer.emit(MetadataRefreshFailed(str(error)))
            # All that were known are gone or moved: find the cluster again from the start (KIP-899, KIP-1102).
            await self.bootstrap()
            self._observer.emit(ClusterRebootstrapped(tuple(b.address for b in self._brokers.values())))

    @property
    def _wanted(self) -> frozenset[str] | None:
        wanted: set[str] = set()
        for topics in self._topics.values():
            if topics is None:
                return None
            wanted |= topics
        return frozenset(wanted)

    @property
    def _covers_all(self) -> bool:
        """Whether the last question asked for all that is watched now."""
        wanted, asked_for = self._wanted, self._asked_for
        return asked_for is None or (wanted is not None and wanted <= asked_for)

    def _question(self) -> MetadataRequest:
        wanted = self._asked_for = self._wanted
        return MetadataRequest(None if wanted is None else tuple(MetadataTopic(name) for name in sorted(wanted)))

    def _take(self, answer: MetadataResponse) -> None:
        self.topology = self.topology.updated(answer)
        self._asked, self._failure = self._asked + 1, None
        self._refreshed_at = asyncio.get_running_loop().time()
        for node_id, node in self.topology.brokers.items():
            known = self._brokers.get(node_id)
            if known is None or (known.host, known.port) != (node.host, node.port):
                if known is not None:
                    known.close()
                self._brokers[node_id] = self._made(node)
        for node_id in self._brokers.keys() - self.topology.brokers.keys():
            self._brokers.pop(node_id).close()

    def _made(self, node: BrokerMetadata) -> Broker:
        if self._is_closed:
            raise NodeNotConnectedError("the cluster was closed")
        return Broker(node, self.config, self._dialer, self._observer, connects_itself=True)

    def learn_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> None:
        """Take a newer leader from a broker that was asked in vain and knows (KIP-951)."""
        self.topology = self.topology.with_leader(partition, leader_id, epoch)

    # ---- brokers -----------------------------------------------------------------------------------------------

    def broker(self, node_id: int) -> Broker:
        """The broker of that number; it connects when it is first asked something.

        Raises:
            NodeNotConnectedError: there is none now.
        """
        broker = self._brokers.get(node_id)
        if broker is None:
            raise NodeNotConnectedError(f"broker {node_id} is not in the cluster (now: {sorted(self._brokers)})")
        return broker

    async def send_to_any(self, request: Request[ResponseT]) -> ResponseT:
        """Ask whichever broker answers, those that are connected first.

        Raises:
            BrokerConnectionError: none of them does.
        """
        in_turn = sorted(self._brokers.values(), key=lambda one: (not one.connected, random.random()))  # noqa: S311

        async def ask(number: int, broker: Broker) -> ResponseT:
            # One that hangs does not keep us from the next.
            await asyncio.sleep(number * _STAGGER_S)
            return await broker.send(request)

        return await _first_of([partial(ask, number, broker) for number, broker in enumerate(in_turn)])

    # ---- coordinators ------------------------------------------------------------------------------------------

    async def coordinator(self, group_id: str) -> Broker:
        """The broker that coordinates a group; looked up once for all who ask together.

        Raises:
            BrokerError: the broker cannot say now (retriable), or may not (GroupAuthorizationFailedError).
            BrokerConnectionError: nobody answers.
        """
        async with self._looking_up:
            # Also when the broker has left the cluster since.
            if self._coordinators.get(group_id) not in self._brokers:
                await self._look_up(group_id)
        return self.broker(self._coordinators[group_id])

    async def _look_up(self, group_id: str) -> None:
        question = FindCoordinatorRequest(group_id)
        try:
            answer = await self.send_to_any(question)
        except BrokerConnectionError:
            # Who fetches nothing would never hear where the brokers have gone.
            await self.refresh()
            answer = await self.send_to_any(question)
        if answer.error_code:
            raise broker_error(answer.error_code, answer.error_message or f"no coordinator of group {group_id!r}")
        if answer.node_id not in self._brokers:
            self._brokers[answer.node_id] = self._made(BrokerMetadata(answer.node_id, answer.host, answer.port))
        self._coordinators[group_id] = answer.node_id
        self._observer.emit(CoordinatorFound(group_id, f"{answer.host}:{answer.port}"))

    def coordinator_id(self, group_id: str) -> int | None:
        """The number of the coordinator, if it is known."""
        return self._coordinators.get(group_id)

    def forget_coordinator(self, group_id: str, reason: str) -> None:
        """It moved, died or hangs: look it up again when it is needed next."""
        if self._coordinators.pop(group_id, None) is not None:
            self._observer.emit(CoordinatorLost(group_id, reason))

    # ---- trying again ------------------------------------------------------------------------------------------

    async def retrying(self, attempt: Callable[[], Awaitable[ResultT]], *, timeout_s: float, what: str) -> ResultT:
        """Do ``attempt`` until it succeeds, with pauses that grow (KIP-580).

        Raises:
            BrokerError: one that another try does not heal, or that the last of the tries ended with.
            AuthenticationError: a broker refused us.
            BrokerConnectionError: ``timeout_s`` is over, and the last try did not reach the broker.
            MalformedMessageError: ``timeout_s`` is over, and the last answer could not be read.
            RequestTimedOutError: ``timeout_s`` is over, and no try came to an end.
        """
        loop = asyncio.get_running_loop()
        deadline, failures = loop.time() + timeout_s, 0
        last: TailraceError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as error:
                if last is not None:  # says more than that the try after it took too long
                    raise _out_of_time(last, what, timeout_s) from last
                raise RequestTimedOutError(f"{what}: not done within {timeout_s:.1f} s") from error
            except (AuthenticationError, UnsupportedVersionError, ConfigurationError):
                raise
            except (BrokerConnectionError, BrokerError, MalformedMessageError) as error:
                failures += 1
                pause_s = self._backoff.pause_s(failures, random.random())  # noqa: S311
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                if loop.time() + pause_s >= deadline:
                    raise _out_of_time(error, what, timeout_s) from error
                last = error
            await asyncio.sleep(pause_s)

    def forget_member(self, member: str) -> None:
        """Close the connections that one member has for itself."""
        for broker in self._brokers.values():
            broker.forget(member)

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        for broker in self._brokers.values():
            broker.close()
        self._brokers.clear()


def _out_of_time(error: TailraceError, what: str, timeout_s: float) -> TailraceError:
    if isinstance(error, BrokerError):
        return type(error)(error.code, f"{error.detail}, still so after {timeout_s:.1f} s of {what}")
    kind = MalformedMessageError if isinstance(error, MalformedMessageError) else BrokerConnectionError
    return kind(f"{what}: tried for {timeout_s:.1f} s; last: {error}")


def _checked(answer: MetadataResponse, who: str) -> MetadataResponse:
    """``answer``, if it says anything: a broker that is starting knows of nobody, and one may send us away."""
    if answer.error_code:
        raise BrokerConnectionError(f"{who} does not say what the cluster looks like ({name_of(answer.error_code)})")
    if not answer.brokers:
        raise BrokerConnectionError(f"{who} knows of no broker yet - is it still starting?")
    return answer


async def _first_of(attempts: Sequence[Callable[[], Awaitable[ResultT]]]) -> ResultT:
    """What the first that succeeds gives; the others are ended.

    Raises:
        AuthenticationError: all fail, one of them so: it cannot heal by waiting.
        UnsupportedVersionError: likewise.
        BrokerConnectionError: all fail; the text says of each why.
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
    lasting = AuthenticationError | UnsupportedVersionError | ConfigurationError
    worst = next((failure for failure in failures if isinstance(failure, lasting)), None)
    reasons = "; ".join(dict.fromkeys(map(str, failures))) or "none is known"
    raise worst or BrokerConnectionError(f"no broker answers: {reasons}")
