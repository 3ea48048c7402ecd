"""Findings about brokers, from given facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.admin.diagnosis.broker_findings import (
    BrokerFacts,
    ClockReading,
    ClusterFacts,
    VoterFacts,
    broker_findings,
)
from tailrace.admin.diagnosis.findings import CommandLines, Level
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.handshake import CONSUMER_PROTOCOL, TOPIC_IDS, BrokerVersions
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import (
    IDEMPOTENCE,
    PUBLISHING,
    TRANSACTIONS,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.net.peers import offer
from tests.support.offered_versions import Limits, limited

NEWEST = {"metadata.version": 30, "group.version": 1, "transaction.version": 2}


def offering(limits: Limits) -> BrokerVersions:
    return BrokerVersions(limited(limits)(offer()))


def broker(node_id: int = 1, **more) -> BrokerFacts:
    facts = BrokerFacts(
        node_id,
        "kafka",
        9090 + node_id,
        round_trip_ms=3,
        supported=NEWEST,
        finalized=NEWEST,
        versions=offering({}),
    )
    return replace(facts, **more)


def cluster(*brokers: BrokerFacts, **more) -> ClusterFacts:
    of = brokers or (broker(1), broker(2), broker(3))
    return ClusterFacts((broker(-1, host="kafka"),), of, **{"clock": ClockReading(1, 0.5, 1), **more})


def found(facts: ClusterFacts, **more) -> dict[str, tuple[Level, str, str]]:
    """Return the level, text and next step, with its command, of each check."""
    findings = list(broker_findings(facts, CommandLines("kafka:9091"), **more))
    assert [
        one for one in findings if one.level in {Level.WARNING, Level.PROBLEM} and not (one.advice and one.command)
    ] == []
    return {one.check: (one.level, f"{one.subject}: {one.text}", f"{one.advice}: {one.command}") for one in findings}


def test_a_sound_cluster_has_only_good_findings():
    """Each check of a sound cluster is one line: reachability, version, features, controllers and clock."""
    facts = cluster(voters=[VoterFacts(1, 0), VoterFacts(2, 300), VoterFacts(3, 500)])

    assert {check: level for check, (level, _, _) in found(facts).items()} == dict.fromkeys(
        ["broker.reachable", "version", "feature.requests", "feature", "controller", "clock"], Level.OK
    )


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ((2, 2), "transactions have version 2"),
        ((2, 1), "transactions have version 1, and version 2 once transaction.version is finalized"),
    ],
)
def test_the_version_of_transactions_is_shown_with_the_possible_one(levels, text):
    """The finding names the version that all brokers have finalized, and the newer one that they support."""
    facts = cluster(*(broker(number, transaction_version=level) for number, level in enumerate(levels, 1)))

    assert found(facts)["feature"][1].endswith(text)


def test_an_unreachable_broker_is_a_problem_with_its_address():
    """The finding names the reason, and a command that tries the connection."""
    level, text, step = found(cluster(broker(1), broker(2, failure="kafka:9092: connection refused")))[
        "broker.unreachable"
    ]

    assert level is Level.PROBLEM
    assert text == "broker 2: does not answer under its advertised name: kafka:9092: connection refused"
    assert "advertised.listeners" in step
    assert step.endswith("nc -vz kafka 9092")


def test_a_broker_that_advertises_this_host_is_explained():
    """A broker that advertises localhost, as in a container, is explained: for its clients it is another host."""
    facts = cluster(broker(1, host="localhost", failure="localhost:9091: connection refused"))

    assert "localhost is this host: set advertised.listeners of broker 1" in found(facts)["broker.unreachable"][2]


def test_advice_about_credentials_is_kept():
    """An error about credentials has better advice than one about addresses."""
    facts = cluster(broker(1, failure="kafka:9091: SASL failed", hint="check sasl_plain_password"))

    assert found(facts)["broker.unreachable"][2].startswith("check sasl_plain_password: nc")


def test_unreachable_bootstrap_addresses_are_reported():
    """No reachable bootstrap address is a problem, and one unreachable address of two is a warning."""
    dead = broker(-2, host="old", failure="old:9088: connection refused")

    assert found(ClusterFacts((dead,)))["bootstrap"][0] is Level.PROBLEM
    assert found(replace(cluster(), bootstrap=(broker(-1), dead)))["bootstrap"][0] is Level.WARNING


def test_brokers_with_the_same_address_are_reported():
    """Brokers that advertise the same address are reported, as requests reach the wrong one."""
    facts = cluster(broker(1, port=9092), broker(2, port=9092))

    assert found(facts)["broker.address"][1] == (
        "brokers 1, 2: all advertise kafka:9092, so that requests reach the wrong broker"
    )


def test_a_fenced_broker_is_a_problem():
    """A broker that is registered but not in the metadata, because it is down, is a problem."""
    level, text, _ = found(cluster(broker(1), broker(2), fenced=[broker(3)]))["broker.fenced"]

    assert (level, text.partition(":")[0]) == (Level.PROBLEM, "broker 3")


def test_slow_and_single_brokers_are_warnings():
    """A broker that answers slowly is a warning, and so is a cluster of a single broker."""
    facts = found(cluster(broker(1, round_trip_ms=800)))

    assert facts["broker.slow"][1] == "broker 1: answers an empty request in 800 ms at kafka:9091"
    assert facts["broker.single"][0] is Level.WARNING


def test_different_releases_are_named():
    """Brokers of different releases are a warning that names them."""
    older = {**NEWEST, "metadata.version": 25}
    level, text, _ = found(cluster(broker(1, supported=older), broker(2), broker(3)))["version.mixed"]

    assert level is Level.WARNING
    assert "4.0: broker 1; 4.3: broker 2, 3" in text


def test_an_unfinalized_upgrade_is_reported():
    """The finding has the version in effect, the supported version, and the command that finalizes the upgrade."""
    older = {**NEWEST, "metadata.version": 21}
    level, text, step = found(cluster(*(broker(n, finalized=older) for n in (1, 2, 3))))["version.finalized"]

    assert level is Level.WARNING
    assert "metadata.version is 21 (3.9), the brokers support 30 (4.3)" in text
    assert "kafka-features.sh --bootstrap-server kafka:9091 upgrade --release-version 4.3" in step


def test_a_finalized_version_newer_than_this_program_is_named_by_the_last_known_release():
    findings = found(cluster(broker(1, supported={"metadata.version": 99}, finalized={"metadata.version": 98})))
    assert "after 4.3" in findings["version.finalized"][1]


@pytest.mark.parametrize(
    ("supported", "text"), [({}, "Kafka before 3.3"), ({"metadata.version": 99}, "newer than 4.3")]
)
def test_unknown_releases_are_described(supported, text):
    """Brokers without features, or newer than this program, are described by the nearest known release."""
    assert text in found(cluster(broker(1, supported=supported, finalized=supported)))["version"][1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"versions": offering({ConsumerGroupHeartbeatRequest: None})}, "broker 1 does not support it"),
        ({"finalized": {**NEWEST, "group.version": 0}}, "group.version is 0"),
    ],
)
def test_missing_consumer_protocol_is_a_problem_only_for_an_app_that_uses_it(change, reason):
    """A missing KIP-848 request or unfinalized feature is a problem only for an app that uses the protocol."""
    facts = cluster(broker(1, **change))

    assert found(facts)["feature"][0] is Level.OK
    assert "not available" in found(facts)["feature"][1]
    level, text, _ = found(facts, needed=[CONSUMER_PROTOCOL])["feature.consumer-protocol"]
    assert level is Level.PROBLEM
    assert reason in text


@pytest.mark.parametrize(
    ("capability", "missing", "consequence"),
    [
        (PUBLISHING, {ProduceRequest: 2}, "an app that publishes does not start: Produce: "),
        (IDEMPOTENCE, {InitProducerIdRequest: None}, "a published record whose answer is lost may be stored twice: "),
        (TRANSACTIONS, {EndTxnRequest: 0}, "an app with delivery='exactly_once' does not start: EndTxn: "),
        (TOPIC_IDS, {MetadataRequest: 9}, "a topic that is deleted and created again is read on from the former"),
    ],
    ids=["publishing", "idempotence", "transactions", "topic ids"],
)
def test_a_missing_capability_is_a_problem_for_an_app_that_needs_it(capability, missing, consequence):
    """A broker without the requests of a capability is a warning, or a problem for an app that needs it."""
    facts = cluster(broker(1), broker(2, versions=offering(missing)))
    findings = list(broker_findings(facts, CommandLines("kafka:9091")))
    (warning,) = (one for one in findings if one.check == "feature.missing" and capability.name in one.text)

    assert warning.level is Level.WARNING
    assert warning.text.startswith(f"broker 2 does not support {capability.name}, so {consequence}")
    assert warning.advice == capability.advice
    needing = broker_findings(facts, CommandLines("kafka:9091"), needed=[capability])
    (problem,) = (one for one in needing if one.level is Level.PROBLEM)
    assert problem.text.startswith(f"broker 2 does not support {capability.name}, so the app does not start: ")


def test_the_table_has_the_versions_of_each_broker():
    """Each row has a request of a capability, the versions that it needs, and those that each broker offers."""
    facts = cluster(broker(1), broker(2, versions=offering({InitProducerIdRequest: None, MetadataRequest: 9})))
    (finding,) = (one for one in broker_findings(facts, CommandLines("kafka:9091")) if one.check == "feature.requests")
    rows = {(row.capability, row.request): row for row in finding.table}

    assert [(row.capability, row.request) for row in finding.table] == [
        ("publish", "Produce"),
        ("idempotence", "InitProducerId"),
        ("transactions", "Produce"),
        ("transactions", "AddPartitionsToTxn"),
        ("transactions", "AddOffsetsToTxn"),
        ("transactions", "TxnOffsetCommit"),
        ("transactions", "EndTxn"),
        ("transactions", "InitProducerId"),
        ("KIP-848", "ConsumerGroupHeartbeat"),
        ("topic ids", "Metadata"),
    ]
    producer_ids, metadata = rows["idempotence", "InitProducerId"], rows["topic ids", "Metadata"]
    assert (producer_ids.is_enough(1), producer_ids.is_enough(2)) == (True, False)
    assert (metadata.needed[0], metadata.offered[2][-1], metadata.is_enough(2)) == (10, 9, False)


@pytest.mark.parametrize(
    ("behind", "text"),
    [
        (
            [0, 100, None],
            "2 of 3 follow the metadata log; controller 3 has not read it since the last election; if one more",
        ),
        (
            [0, 100, 200, 300, 60_000],
            "; controller 5 is 1 min behind; the cluster survives the loss of 1 more controller",
        ),
        (
            [0, 60_000, None],
            "controller 2 is 1 min behind, controller 3 has not read it since the last election; without a majority",
        ),
    ],
)
def test_controllers_behind_the_metadata_log_are_reported(behind, text):
    """The finding names controllers that do not follow the metadata log, and how many more of them may fail."""
    facts = cluster(voters=[VoterFacts(number, one) for number, one in enumerate(behind, 1)])
    level, found_text, _ = found(facts)["controller.behind"]

    assert level is Level.WARNING
    assert text in found_text


def test_silent_controllers_are_a_problem():
    """No active controller is a problem: records can be read and written, but nothing can be changed or elected."""
    facts = cluster(clock=None, no_quorum="no answer within 5 s", is_quorum_silent=True)
    level, text, _ = found(facts)["controller.silent"]

    assert level is Level.PROBLEM
    assert text.startswith("controllers: no active controller answers: no answer within 5 s; until one does")


@pytest.mark.parametrize(
    ("ahead_ms", "error_ms", "check", "level", "text"),
    [
        (0.4, 2, "clock", Level.OK, "controller 1 and this host agree, ± 2 ms"),
        (-900, 5, "clock", Level.OK, "controller 1 is 900 ms behind this host, ± 5 ms"),
        (1_400, 500, "clock", Level.OK, "ahead of this host"),
        (1_600, 500, "clock.skew", Level.WARNING, "controller 1 is 1,600 ms ahead of this host, ± 500 ms"),
        (-3_600_000, 2, "clock.skew", Level.PROBLEM, "controller 1 is 1 h behind this host"),
    ],
)
def test_clock_skew_counts_beyond_the_error_of_its_measurement(ahead_ms, error_ms, check, level, text):
    """Clock skew beyond the measurement error is a warning from one second on, and a problem from five minutes on."""
    found_level, found_text, _ = found(cluster(clock=ClockReading(1, ahead_ms, error_ms)))[check]

    assert found_level is level
    assert text in found_text


def test_a_clock_that_cannot_be_read_is_skipped():
    """A clock that cannot be read is a skipped check with the reason."""
    facts = cluster(clock=None, no_quorum="not authorized to Describe the cluster")

    assert found(facts)["clock"][:2] == (
        Level.SKIPPED,
        "clocks: not compared: not authorized to Describe the cluster",
    )
