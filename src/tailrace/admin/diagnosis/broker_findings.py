"""Findings about brokers: reachability, versions, features, controllers and clocks. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.admin.diagnosis.findings import (
    CommandLines,
    Finding,
    Level,
    RequestSupport,
    Subject,
    counted,
    duration,
    named,
)
from tailrace.protocol.handshake import (
    CONSUMER_PROTOCOL,
    TOPIC_IDS,
    ApiVersionsResponse,
    BrokerVersions,
    Capability,
)
from tailrace.protocol.transactions import IDEMPOTENCE, PUBLISHING, TRANSACTION_VERSION, TRANSACTIONS

__all__ = ["BrokerFacts", "ClockReading", "ClusterFacts", "VoterFacts", "broker_findings"]

_RELEASES = {7: "3.3", 8: "3.4", 11: "3.5", 14: "3.6", 19: "3.7", 20: "3.8", 21: "3.9", 25: "4.0", 27: "4.1"} | {
    29: "4.2",
    30: "4.3",
}
"""Release of Apache Kafka by the greatest metadata.version that its brokers support."""
_SLOW_MS = 500
"""Round trip from which on a broker is slow."""
_SKEW_MS = 1_000
"""Difference between two clocks from which on there is a warning."""
_BAD_SKEW_MS = 300_000
"""Difference between two clocks from which on there is a problem: Kerberos refuses tickets, and some tokens fail."""
_BEHIND_MS = 10_000
"""Delay above which a controller does not follow the metadata log. Normally, controllers fetch every 500 ms."""
_CAPABILITIES = (PUBLISHING, IDEMPOTENCE, TRANSACTIONS, CONSUMER_PROTOCOL, TOPIC_IDS)
"""Capabilities that not all brokers have, in the order of the table."""
_CONSEQUENCES: Mapping[Capability, str] = {
    PUBLISHING: "an app that publishes does not start",
    IDEMPOTENCE: "a published record whose answer is lost may be stored twice",
    TRANSACTIONS: "an app with delivery='exactly_once' does not start",
    TOPIC_IDS: "a topic that is deleted and created again is read on from the former offsets",
}
"""Consequences if a broker lacks a capability that the app does not require; KIP-848 has a finding of its own."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - compared, not listened on


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Broker of the cluster, or address of ``bootstrap_servers``, and the result of a connection to it."""

    node_id: int
    host: str
    port: int
    failure: str = ""
    """Reason why the broker was not reached; empty if it answered."""
    hint: str = ""
    """Advice of the error, if it is about credentials or versions; empty if it is about the connection."""
    round_trip_ms: float = 0.0
    supported: Mapping[str, int] = field(default_factory=dict)
    """Greatest level of each feature that the broker supports."""
    finalized: Mapping[str, int] = field(default_factory=dict)
    """Level of each feature that is in effect in the cluster."""
    transaction_version: int = 1
    """Version of transactions with this broker (KIP-890)."""
    versions: BrokerVersions = field(default_factory=lambda: BrokerVersions(ApiVersionsResponse()))
    """Versions that the broker offers; none if it was not reached."""

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    @property
    def release(self) -> str:
        """Release of Apache Kafka; empty if unknown, as before Kafka 3.3."""
        level = self.supported.get("metadata.version", 0)
        if level > max(_RELEASES):
            return f"newer than {_RELEASES[max(_RELEASES)]}"
        return _RELEASES.get(level, "")


@dataclass(frozen=True, slots=True)
class VoterFacts:
    """Controller that votes in elections."""

    node_id: int
    behind_ms: float | None
    """Milliseconds since the controller had read the whole metadata log.

    None if it has not done so since the last election of the active controller.
    """


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Clock of the active controller, read once."""

    node_id: int
    ahead_ms: float
    """Milliseconds by which the controller's clock is ahead of this host's; negative if it is behind."""
    error_ms: float
    """Maximum error of ``ahead_ms``: half of the request's round trip."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """State of the brokers and controllers of a cluster."""

    bootstrap: Sequence[BrokerFacts]
    brokers: Sequence[BrokerFacts] = ()
    fenced: Sequence[BrokerFacts] = ()
    """Brokers that are registered, but send no heartbeats to the controllers."""
    voters: Sequence[VoterFacts] = ()
    clock: ClockReading | None = None
    no_quorum: str = ""
    """Reason why ``voters`` and ``clock`` are unknown; empty if they are known."""
    is_quorum_silent: bool = False
    """True if the controllers were asked and did not answer."""

    @property
    def reached(self) -> list[BrokerFacts]:
        """Brokers that answered."""
        return [one for one in self.brokers if not one.failure]


def broker_findings(
    facts: ClusterFacts, commands: CommandLines, needed: Collection[Capability] = ()
) -> Iterator[Finding]:
    """Yield the findings about brokers, controllers and clocks; ``needed`` are the capabilities that an app needs."""
    yield from _bootstrap_findings(facts, commands)
    if not facts.brokers:
        return
    yield from _reachability_findings(facts, commands)
    if facts.reached:
        yield from _version_findings(facts.reached, commands)
        yield from _capability_findings(facts.reached, commands, needed)
        yield from _feature_findings(facts.reached, commands, needs_consumer_protocol=CONSUMER_PROTOCOL in needed)
    yield from _controller_findings(facts, commands)
    yield _clock_finding(facts)


def _bootstrap_findings(facts: ClusterFacts, commands: CommandLines) -> Iterator[Finding]:
    failed = [one for one in facts.bootstrap if one.failure]
    level = Level.PROBLEM if len(failed) == len(facts.bootstrap) else Level.WARNING
    for one in failed:
        consequence = (
            "no check of the cluster was possible"
            if not facts.brokers
            else "clients that know only this address cannot start"
        )
        yield Subject("bootstrap_servers").finding(
            level,
            "bootstrap",
            f"{one.failure}; {consequence}",
            one.hint or "correct bootstrap_servers, or start the broker",
            commands.connect(one.host, one.port),
        )


def _reachability_findings(facts: ClusterFacts, commands: CommandLines) -> Iterator[Finding]:
    bootstrap_hosts = {one.host for one in facts.bootstrap}
    for one in facts.brokers:
        if one.failure:
            yield _unreachable_finding(one, bootstrap_hosts, commands)
        elif one.round_trip_ms >= _SLOW_MS:
            yield Subject(f"broker {one.node_id}").warning(
                "broker.slow",
                f"answers an empty request in {duration(one.round_trip_ms)} at {one.address}",
                "check the load of the broker and the network",
                f"ping -c 5 {one.host}",
            )
    yield from _shared_address_findings(facts.brokers, commands)
    for one in facts.fenced:
        yield Subject(f"broker {one.node_id}").problem(
            "broker.fenced",
            "is registered, but the controllers receive no heartbeats from it, so it takes no part in the cluster",
            f"start broker {one.node_id}; its last address was {one.address}",
            commands.connect(one.host, one.port),
        )
    if reached := facts.reached:
        times = sorted(round(one.round_trip_ms) for one in reached)
        span = f"{times[0]} ms" if times[0] == times[-1] else f"{times[0]} to {times[-1]} ms"
        yield Subject("brokers").ok(
            "broker.reachable",
            f"{len(reached)} of {len(facts.brokers)} answer under their advertised names, in {span}",
        )
    if len(facts.brokers) + len(facts.fenced) == 1:
        yield Subject("brokers").warning(
            "broker.single",
            "the cluster has 1 broker: while it is down, nothing can be read or written",
            "in production, run at least 3 brokers",
            commands.kafka("kafka-metadata-quorum", "describe", "--status"),
        )


def _unreachable_finding(broker: BrokerFacts, bootstrap_hosts: Collection[str], commands: CommandLines) -> Finding:
    if broker.hint:
        advice = broker.hint
    elif broker.host in _LOOPBACK and not _LOOPBACK.intersection(bootstrap_hosts):
        advice = (
            f"{broker.host} is this host: set advertised.listeners of broker {broker.node_id} to a name that clients"
            " resolve to the broker"
        )
    else:
        advice = (
            f"check that broker {broker.node_id} runs, and that its advertised.listeners is an address that this host"
            " reaches"
        )
    return Subject(f"broker {broker.node_id}").problem(
        "broker.unreachable",
        f"does not answer under its advertised name: {broker.failure}",
        advice,
        commands.connect(broker.host, broker.port),
    )


def _shared_address_findings(brokers: Sequence[BrokerFacts], commands: CommandLines) -> Iterator[Finding]:
    by_address: dict[str, list[int]] = {}
    for one in brokers:
        by_address.setdefault(one.address, []).append(one.node_id)
    for address, ids in by_address.items():
        if len(ids) > 1:
            yield Subject(f"brokers {named(ids)}").problem(
                "broker.address",
                f"all advertise {address}, so that requests reach the wrong broker",
                "give each broker an address of its own in advertised.listeners",
                commands.kafka("kafka-broker-api-versions"),
            )


def _version_findings(reached: Sequence[BrokerFacts], commands: CommandLines) -> Iterator[Finding]:
    releases: dict[str, list[int]] = {}
    for one in reached:
        releases.setdefault(one.release or "unknown", []).append(one.node_id)
    if len(releases) > 1:
        each = "; ".join(f"{release}: broker {named(ids)}" for release, ids in sorted(releases.items()))
        yield Subject("versions").warning(
            "version.mixed",
            f"brokers run different releases of Kafka: {each}",
            "finish the rolling upgrade",
            commands.kafka("kafka-broker-api-versions"),
        )
        return
    (release,) = releases
    first = reached[0]
    supported, finalized = first.supported.get("metadata.version", 0), first.finalized.get("metadata.version", 0)
    if not supported:
        yield Subject("versions").ok(
            "version",
            "Kafka before 3.3; the brokers support all requests that a consumer needs",
        )
    elif finalized < supported:
        yield Subject("versions").warning(
            "version.finalized",
            f"Kafka {release}, but the upgrade is not finalized: metadata.version is {finalized}"
            f" ({_release_of(finalized)}), the brokers support {supported} ({release})",
            "finalize the upgrade once a downgrade is no longer needed",
            commands.kafka("kafka-features", "upgrade", "--release-version", release),
        )
    else:
        yield Subject("versions").ok(
            "version",
            f"Kafka {release} (metadata.version {finalized}); the brokers support all requests that a consumer needs",
        )


def _release_of(level: int) -> str:
    """Return the first release whose brokers support this metadata.version."""
    newest_release = _RELEASES[max(_RELEASES)]
    return next((release for newest, release in _RELEASES.items() if level <= newest), f"after {newest_release}")


def _capability_findings(
    reached: Sequence[BrokerFacts], commands: CommandLines, needed: Collection[Capability]
) -> Iterator[Finding]:
    for capability, consequence in _CONSEQUENCES.items():
        lacking = {one.node_id: reason for one in reached if (reason := one.versions.lacks(capability))}
        if lacking:
            is_needed = capability in needed
            effect = "the app does not start" if is_needed else consequence
            reason = "; ".join(dict.fromkeys(lacking.values()))
            yield Subject("features").finding(
                Level.PROBLEM if is_needed else Level.WARNING,
                "feature.missing",
                f"broker {named(lacking)} does not support {capability.name}, so {effect}: {reason}",
                capability.advice,
                commands.kafka("kafka-broker-api-versions"),
            )
    rows = tuple(
        RequestSupport(
            capability.short_name, api.name, needed, {one.node_id: one.versions.range_of(api) for one in reached}
        )
        for capability in _CAPABILITIES
        for api, needed in capability.needed.items()
    )
    yield Finding("feature.requests", Level.OK, "features", "versions of requests that the brokers offer", table=rows)


def _feature_findings(
    reached: Sequence[BrokerFacts], commands: CommandLines, *, needs_consumer_protocol: bool
) -> Iterator[Finding]:
    without = [one.node_id for one in reached if one.versions.lacks(CONSUMER_PROTOCOL)]
    # Kafka 3.7 and 3.8 offer the request in previews, without the feature.
    level = min(one.finalized.get("group.version", 0) for one in reached)
    available = not without and level >= 1
    transactions = min(one.transaction_version for one in reached)
    # tailrace has no later version.
    possible = min(2, *(one.supported.get(TRANSACTION_VERSION, 0) for one in reached))
    if needs_consumer_protocol and not available:
        reason = f"broker {named(without)} does not support it" if without else f"group.version is {level}"
        yield Subject("features").problem(
            "feature.consumer-protocol",
            f"the app has group_protocol='consumer' (KIP-848), but {reason}: its members cannot join",
            "upgrade the brokers to Kafka 4.0 or newer and finalize the upgrade, or set group_protocol='classic'",
            commands.kafka("kafka-features", "describe"),
        )
        return
    consumer = "available" if available else "not available, groups use the classic protocol"
    publishing, exactly_once = (
        "not available" if any(one.versions.lacks(capability) for one in reached) else "available"
        for capability in (PUBLISHING, TRANSACTIONS)
    )
    yield Subject("features").ok(
        "feature",
        f"publishing is {publishing}, exactly-once delivery is {exactly_once},"
        f" KIP-848 (group_protocol='consumer') is {consumer}; transactions have version {transactions}"
        + (f", and version {possible} once {TRANSACTION_VERSION} is finalized" if possible > transactions else ""),
    )


def _controller_findings(facts: ClusterFacts, commands: CommandLines) -> Iterator[Finding]:
    if facts.is_quorum_silent:
        yield Subject("controllers").problem(
            "controller.silent",
            f"no active controller answers: {facts.no_quorum}; until one does, no partition leader is elected and no"
            " topic is created",
            "start the controllers; a majority of them must run",
            commands.kafka("kafka-metadata-quorum", "describe", "--status"),
        )
    if not facts.voters:
        return
    behind = [one for one in facts.voters if one.behind_ms is None or one.behind_ms > _BEHIND_MS]
    following, majority = len(facts.voters) - len(behind), len(facts.voters) // 2 + 1
    if not behind:
        yield Subject("controllers").ok("controller", f"{following} of {len(facts.voters)} follow the metadata log")
        return
    states = ", ".join(
        f"controller {one.node_id} "
        + (
            "has not read it since the last election"
            if one.behind_ms is None
            else f"is {duration(one.behind_ms)} behind"
        )
        for one in behind
    )
    spare = following - majority
    if spare > 0:
        consequence = f"the cluster survives the loss of {counted(spare, 'more controller')}"
    else:
        condition = "if one more controller fails" if spare == 0 else "without a majority"
        consequence = f"{condition}, no partition leader is elected and no topic is created"
    yield Subject("controllers").warning(
        "controller.behind",
        f"{following} of {len(facts.voters)} follow the metadata log; {states}; {consequence}",
        "start the controllers that are down",
        commands.kafka("kafka-metadata-quorum", "describe", "--replication"),
    )


def _clock_finding(facts: ClusterFacts) -> Finding:
    clock = facts.clock
    if clock is None:
        return Subject("clocks").skipped("clock", f"not compared: {facts.no_quorum or 'no controller answered'}")
    if abs(clock.ahead_ms) <= clock.error_ms:
        difference = f"controller {clock.node_id} and this host agree"
    else:
        side = "ahead of" if clock.ahead_ms >= 0 else "behind"
        difference = f"controller {clock.node_id} is {duration(abs(clock.ahead_ms))} {side} this host"
    text = f"{difference}, ± {clock.error_ms:.0f} ms; the clocks of other brokers cannot be read"
    if abs(clock.ahead_ms) - clock.error_ms < _SKEW_MS:
        return Subject("clocks").ok("clock", text)
    return Subject("clocks").finding(
        Level.PROBLEM if abs(clock.ahead_ms) - clock.error_ms >= _BAD_SKEW_MS else Level.WARNING,
        "clock.skew",
        f"{text}: delays of retry topics, retention and the validity of tokens are off by as much",
        "synchronize the clocks of all hosts by NTP",
        "timedatectl timesync-status",
    )
