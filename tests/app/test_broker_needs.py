"""Capabilities that an app needs, checked at its start on all brokers of a cluster."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest

from tailrace import App, PublishError, Retry, UnsupportedVersionError
from tailrace.app.broker_needs import broker_needs
from tailrace.app.handlers import Handler
from tailrace.core.capabilities import ClusterVersions
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import BrokerUnreachable, CapabilityMissing, IdempotenceDisabled, VersionsUnknown
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse, BrokerVersions
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import (
    IDEMPOTENCE,
    PUBLISHING,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tailrace.testing import KafkaCluster
from tests.support.consumer_group import until
from tests.support.net.peers import offer
from tests.support.offered_versions import Limits, limited
from tests.support.topic_contents import contents_of
from tests.support.transaction_faults import with_code
from tests.support.witness import Witness

NO_TOPIC_IDS = {MetadataRequest: 9}


def handler(**options: object) -> Handler:
    return Handler(function=print, name="bill", topics=("orders",), **options)


# ---- needs of an app -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handlers", "user"),
    [
        ([handler(publish="invoices")], "bill has publish='invoices'"),
        ([handler(), handler(dead_letter="{topic}.dead")], "bill has dead_letter='{topic}.dead'"),
        ([handler(retry=Retry(topic_delays_ms=[5_000]))], "bill has retry topics"),
        ([handler(delays_ms={"g.delayed-publish.5s": 5_000})], "the app has publish_delays_ms"),
        ([], "the app has no handlers and publishes"),
        ([handler(), handler(retry=Retry(attempts=3))], None),
    ],
    ids=["results", "dead letters", "retry topics", "delayed messages", "no handlers", "reads only"],
)
def test_an_app_needs_publishing_if_it_declares_it(handlers, user):
    """Results, dead letters and retry topics need publishing; an app that only reads may publish."""
    needs = broker_needs(handlers, "classic", has_transactions=False)

    assert needs.required.get(PUBLISHING) == user
    assert (PUBLISHING in needs.useful) is (user is None)


def versions(**brokers: ApiVersionsResponse) -> ClusterVersions:
    return ClusterVersions({name: BrokerVersions(answer) for name, answer in brokers.items()}, {})


def test_brokers_that_lack_a_capability_are_named():
    """A clause names the brokers that lack a capability, if not all do, and what they offer."""
    full, none, old = offer(), limited({InitProducerIdRequest: None})(offer()), offer(Produce=(0, 2))

    assert versions(a=full, b=full).lacks(IDEMPOTENCE) == ""
    assert versions(a=none).lacks(IDEMPOTENCE).startswith("the broker does not support idempotent")
    assert versions(a=none, b=none).lacks(IDEMPOTENCE).startswith("the brokers do not support idempotent")
    assert versions(a=full, b=none, c=none).lacks(IDEMPOTENCE).startswith("brokers b, c do not support idempotent")
    assert versions(a=full, b=old).lacks(PUBLISHING) == (
        "broker b does not support publishing: Produce: tailrace supports versions 3 to"
        f" {ProduceRequest.api.versions[-1]}, the broker supports 0 to 2"
    )


# ---- a cluster whose second broker offers less -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    """Return two brokers, each behind a proxy."""
    with KafkaCluster(2, proxied=True) as started:
        yield started


def direct(pair: KafkaCluster) -> Witness:
    """Return another client, connected without the proxies."""
    return Witness(",".join(f"127.0.0.1:{node.ports.internal}" for node in pair.nodes))


@pytest.fixture
def second_lacks(pair):
    """Return a function that limits what the second broker offers."""
    faults = []

    def limit(limits: Limits) -> None:
        faults.append(pair.proxies[2].edit_answer(ApiVersionsRequest, limited(limits), times=None))

    yield limit
    for fault in faults:
        fault.end()


@pytest.fixture
def new_app(pair, group, recorder):
    """Return a function that creates an app, which knows only the first broker at its start."""

    def make(*topics: str, **options: object) -> App:
        defaults = {"group_id": group, "auto_offset_reset": "earliest", "hooks": [recorder]}
        app = App(bootstrap_servers=pair.proxies[1].address, **{**defaults, **options})
        if topics:

            @app.handler(*topics)
            async def bill(value: bytes) -> None: ...

        return app

    return make


@pytest.fixture
def topic(pair) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    pair.create_topic(name, 2)
    return name


@pytest.mark.parametrize(
    ("options", "missing", "words"),
    [
        (
            {"dead_letter": "{topic}.dead"},
            ProduceRequest,
            ["bill has dead_letter='{topic}.dead', but broker 2 ("],
        ),
        ({}, ProduceRequest, ["the app has no handlers and publishes, but broker 2 ("]),
        ({"producer": {"enable_idempotence": True}}, InitProducerIdRequest, ["idempotent producers (KIP-98)"]),
        ({"delivery": "exactly_once"}, TxnOffsetCommitRequest, ["transactions (delivery='exactly_once')"]),
        (
            {"delivery": "exactly_once"},
            InitProducerIdRequest,
            ["transactions (delivery='exactly_once')", "InitProducerId: required are versions 3 to "],
        ),
        (
            {"group_protocol": "consumer"},
            ConsumerGroupHeartbeatRequest,
            ["the app has group_protocol='consumer', but", "set group_protocol='classic', or upgrade"],
        ),
    ],
    ids=["dead letters", "no handlers", "required idempotence", "transactions", "no producer ids", "KIP-848"],
)
async def test_an_app_is_refused_if_one_broker_lacks_what_it_needs(new_app, second_lacks, options, missing, words):
    """The start fails with one sentence that names the broker, its address, the request and the next step."""
    second_lacks({missing: None})
    app = new_app(*["orders"] if options.keys() - {"producer"} else [], **options)

    with pytest.raises(UnsupportedVersionError) as caught:
        await app.start()

    text = str(caught.value)
    for word in (*words, "broker 2 (127.0.0.1:", f"{missing.api.name}: ", " - "):
        assert word in text
    assert "\n" not in text


async def test_an_app_that_only_reads_starts_where_it_cannot_publish(pair, new_app, second_lacks, topic, recorder):
    """Without publishing, records are handled; a warning says that App.publish() raises, and it does."""
    second_lacks({ProduceRequest: None})
    app, handled = new_app(), []

    @app.handler(topic)
    async def bill(value: bytes) -> None:
        handled.append(value)

    direct(pair).produce(topic, [b"1"])
    async with app, asyncio.timeout(30):
        await until(lambda: handled == [b"1"])
        with pytest.raises(PublishError) as caught:
            await app.publish(topic, b"2")

    assert str(caught.value).startswith("this app cannot publish: broker 2 (127.0.0.1:")
    (event,) = recorder.of(CapabilityMissing)
    assert event.reason.startswith("broker 2 (127.0.0.1:")
    assert event.consequence == "App.publish() raises an error"


async def test_an_app_that_only_reads_starts_without_permission_to_publish(pair, new_app, topic, recorder):
    """A principal that may write to no topic gets no producer id, and reads nevertheless."""
    refused = with_code(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    faults = [one.edit_answer(InitProducerIdRequest, refused, times=None) for one in pair.proxies.values()]
    try:
        async with new_app(topic) as app:
            with pytest.raises(PublishError, match="grant WRITE on a topic"):
                await app.publish(topic, b"2")
        with pytest.raises(PublishError, match="grant WRITE on a topic"):
            await new_app(topic, dead_letter="{topic}.dead").start()
    finally:
        for fault in faults:
            fault.end()

    assert [one.consequence for one in recorder.of(CapabilityMissing)] == ["App.publish() raises an error"]


async def test_missing_topic_ids_are_a_warning(new_app, second_lacks, topic, recorder):
    """Without topic ids on one broker, the app starts with a warning about recreated topics."""
    second_lacks(NO_TOPIC_IDS)
    async with new_app(topic):
        (event,) = recorder.of(CapabilityMissing)

    assert "broker 2 (127.0.0.1:" in event.reason
    assert "Metadata: required are versions 10 to 13, the broker supports 0 to 9" in event.reason
    assert "deleted and created again" in event.consequence


@pytest.mark.parametrize("fault", ["black_hole", "refuse"])
async def test_a_broker_that_does_not_answer_does_not_delay_the_start(pair, new_app, topic, recorder, fault):
    """A broker that cannot be reached at the start is named in one warning, and delays the start by two seconds."""
    getattr(pair.proxies[2], fault)()
    try:
        app = new_app(topic, stop_timeout_ms=1_000)
        began = time.monotonic()
        await app.start()
        took = time.monotonic() - began
        await app.stop()
    finally:
        pair.proxies[2].restore()

    (event,) = recorder.of(VersionsUnknown)
    assert event.brokers == (f"2 ({pair.proxies[2].address})",)
    assert event.reason == "no answer within 2.0 s" or recorder.of(BrokerUnreachable)
    assert took < 6


async def test_records_fail_and_are_published_without_producer_ids(pair, new_app, second_lacks, topic, recorder):
    """Where a broker offers no producer ids, results, retry topics and dead letters work, and one event is emitted."""
    second_lacks({InitProducerIdRequest: None})
    results = f"{topic}.results"
    app, calls = new_app(dead_letter="{topic}.dead", client_id=topic), []

    @app.handler(topic, publish=results, retry=Retry(attempts=1, topic_delays_ms=[100]))
    async def bill(value: bytes) -> bytes:
        calls.append(value)
        if value == b"bad":
            raise ValueError("this record cannot be handled")
        return value

    witness = direct(pair)
    pair.create_topic(results, 1)
    witness.produce(topic, [b"good", b"bad"])
    async with app, asyncio.timeout(30):
        await until(lambda: len(calls) == 3)
        while not await contents_of(witness, f"{topic}.dead", 2):  # noqa: ASYNC110 - a request each
            await asyncio.sleep(0.1)

    assert [one.value() for one in await contents_of(witness, results)] == [b"good"]
    assert [one.value() for one in await contents_of(witness, f"{topic}.dead", 2)] == [b"bad"]
    (event,) = recorder.of(IdempotenceDisabled)
    assert event.reason.startswith("broker 2 (127.0.0.1:")
    assert pair.proxies[1].requests(InitProducerIdRequest, client_id=topic) == []
