"""Options of an app's producer: all that the app publishes uses them, and the app keeps what it decides itself."""

from __future__ import annotations

import asyncio
import traceback

import pytest
from prometheus_client import CollectorRegistry

from tailrace import App, ConfigurationError, ProducerOptions, Retry
from tailrace.config import app_producer_config, resolve
from tailrace.integrations.prometheus import exposition
from tailrace.observe.metrics import METRICS
from tests.support.consumer_group import until

ZSTD = 4
"""Number of zstd in the attributes of a record batch."""


def compressions(server, topic: str) -> set[int]:
    """Return the compressions of all batches of records in the broker's log of a topic, from its files."""
    found = set()
    for file in server._folder.rglob(f"{topic}-*/*.log"):
        log, at = file.read_bytes(), 0
        while at + 23 <= len(log):
            attributes = int.from_bytes(log[at + 21 : at + 23])
            if not attributes & 0x20:  # The batch is no control batch.
                found.add(attributes & 7)
            at += 12 + int.from_bytes(log[at + 8 : at + 12])
    return found


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_everything_that_an_app_publishes_uses_its_producer_options(
    kafka_server, new_topic, group, witness, delivery
):
    """Results, messages of publish(), retries and dead letters are compressed as ``producer=`` says."""
    source, results, messages = (new_topic() for _ in range(3))
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        delivery=delivery,
        retry=Retry(attempts=1, topic_delays_ms=[10]),
        dead_letter="{topic}.{group}.dead",
        producer=ProducerOptions(compression_type="zstd"),
    )

    @app.handler(source, publish=results)
    async def handle(value: bytes) -> bytes:
        await app.publish(messages, value)
        if value.startswith(b"bad"):
            raise ValueError("bad")
        return value

    dead, retries = f"{source}.{group}.dead", f"{source}.{group}.retry.10ms"
    async with app, asyncio.timeout(60):
        await app.publish(source, b"good" * 50)
        await app.publish(source, b"bad" * 50)
        topics = [source, results, messages, dead, retries]
        await until(lambda: all(compressions(kafka_server, one) for one in topics))

    assert {one: compressions(kafka_server, one) for one in topics} == {one: {ZSTD} for one in topics}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_statistics_and_metrics_contain_the_producers_of_an_app(kafka_server, new_topic, group, delivery):
    """Records of an app are counted, by its own producer and by the transactions of its group."""
    source, results = new_topic(), new_topic()
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        delivery=delivery,
        producer=ProducerOptions(compression_type="zstd", buffer_memory=1_000_000),
    )

    @app.handler(source, publish=results)
    async def handle(value: bytes) -> bytes:
        return value

    assert app.statistics().producers == ()
    async with app, asyncio.timeout(60):
        for _ in range(3):
            await app.publish(source, b"good" * 500)
        await until(lambda: sum(one.published_records for one in app.statistics().producers) == 6)
        found = app.statistics().producers
        text = (await exposition(app, registry=CollectorRegistry()))[0].decode()

    assert [one.published_records for one in found] == ([6] if delivery == "at_least_once" else [3, 3])
    for one in found:
        assert one.buffer_memory == 1_000_000
        assert 0 < one.published_batches <= one.published_records
        assert one.published_bytes < one.uncompressed_bytes / 2
        assert one.queue_times.count == one.published_batches
    assert 'tailrace_producer_records_total{client_id="tailrace"} 6.0' in text
    for name in (one.name for one in METRICS if one.subject == "producer"):
        assert f"{name}_count{{" in text or f"{name}{{" in text


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"acks": 1}, "producer= must not contain acks: an app publishes with acks='all', so that no result or dead"),
        ({"bootstrap_servers": "b:9092"}, "producer= must not contain bootstrap_servers, which the app's producer"),
        ({"sasl_plain_password": "hush"}, "producer= must not contain sasl_plain_password, which the app's producer"),
        ({"transactional_id": "one"}, "transactional_id: it belongs to delivery='exactly_once' - pass it to App()"),
        ({"value_serializer": bytes}, "value_serializer: an app encodes values by its codec - pass codec= to App()"),
        ({"max_request_size": 5}, "max_request_size: an app leaves the size of a record to its topic's max.message"),
        ({"compression_typ": "zstd"}, "there is no option 'compression_typ' - did you mean 'compression_type'?"),
        ({"batch.size": 5}, "there is no option 'batch.size' - it is called 'max_batch_size' here"),
        ({"linger_ms": -1}, "linger_ms must be at least 0, not -1"),
        ({"compression_level": 3}, "compression_level=3 needs compression_type 'gzip', 'lz4' or 'zstd', not 'none'"),
        ("zstd", "producer must be ProducerOptions(...) or a dict of options, such as {'compression_type': 'zstd'}"),
    ],
)
def test_options_that_an_app_decides_and_invalid_ones_are_refused(option, text):
    """One sentence names the option and the next step, before the app starts; it shows no secret."""
    with pytest.raises(ConfigurationError) as caught:
        App(group_id="g", producer=option)

    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    inner = [line for frame in shown.stack if "/tailrace/" in frame.filename for line in (frame.locals or {}).values()]
    assert not any("hush" in line for line in inner)


def test_acks_all_may_be_said_and_exactly_once_needs_idempotence():
    """acks="all" is accepted; transactions refuse a producer without idempotence."""
    App(producer={"acks": "all", "enable_idempotence": False})
    with pytest.raises(ConfigurationError, match="enable_idempotence=False contradicts delivery='exactly_once'"):
        App(group_id="g", producer={"enable_idempotence": False}, delivery="exactly_once")


def test_variables_reach_the_producer_of_an_app(monkeypatch):
    """The variables of a Producer set an app's options, too; arguments go before them, and acks stays "all"."""
    monkeypatch.setenv("TAILRACE_COMPRESSION_TYPE", "lz4")
    monkeypatch.setenv("TAILRACE_LINGER_MS", "7")
    monkeypatch.setenv("TAILRACE_TRANSACTIONAL_ID", "of another producer")
    config = app_producer_config(resolve({"client_id": "me", "default_api_timeout_ms": 9_000}), {"linger_ms": 3})

    assert (config.client_id, config.compression_type, config.linger_ms) == ("me", "lz4", 3)
    assert (config.transactional_id, config.delivery_timeout_ms, config.acks) == (None, 9_000, "all")
    monkeypatch.setenv("TAILRACE_ACKS", "1")
    with pytest.raises(ConfigurationError, match=r"TAILRACE_ACKS=1 cannot be used with App, which publishes with acks"):
        App(group_id="g")
    assert App(group_id="g", producer={"acks": "all"}).options == {"group_id": "g"}
