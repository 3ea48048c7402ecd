"""Wrong and hostile use of a producer: each call ends in time with one error that says what to do."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tailrace import (
    BufferFullError,
    ConfigurationError,
    ConsumerStateError,
    Message,
    Producer,
    ProducerFencedError,
    PublishError,
    PublishTimeoutError,
    SharedCluster,
)
from tailrace.integrations.prometheus import exposition
from tailrace.observe.events import PublishDelayed, RecordsAbandoned
from tailrace.testing import KafkaServer
from tests.support.admin_tools import CONFIGS, KafkaTool
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.topic_contents import contents_of
from tests.support.witness import Witness

SOON_S = 8
"""Time in seconds in which a call ends that waits for nothing, on a slow machine."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[KafkaServer]:
    """Broker that tests suspend, and that creates no topics."""
    with KafkaServer(config={"auto.create.topics.enable": "false"}) as started:
        started.create_topic("orders", 2)
        yield started
        started.resume()


@pytest.fixture
def suspended(own_server) -> Iterator[KafkaServer]:
    """Broker that the test suspends by ``pause()``, and that runs again afterwards."""
    yield own_server
    own_server.resume()


def producer_of(server: KafkaServer, **options: Any) -> Producer:
    return Producer(bootstrap_servers=server.bootstrap_servers, **{"stop_timeout_ms": 1_000, **options})


# ---- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [True, 1.0, "1", [1], None, -1, 99])
async def test_a_partitioner_that_returns_no_partition_fails_the_record(own_server, chosen):
    """A call whose partitioner returns something else than a partition raises at once and names it."""
    async with producer_of(own_server, partitioner=lambda *_: chosen) as producer, asyncio.timeout(SOON_S):
        with pytest.raises(PublishError, match=r"partitioner returned .*, which is not one of"):
            await producer.send("orders", b"v")
        assert (await producer.send("orders", b"v", partition=1)).partition == 1


@pytest.mark.parametrize("wrong", [-1, 2**63, True, 1.5, "now"])
async def test_a_timestamp_is_a_number_of_milliseconds(own_server, wrong):
    """A timestamp that is no non-negative integer raises, and is not rounded."""
    async with producer_of(own_server) as producer:
        with pytest.raises(PublishError, match="timestamp_ms must be a number of milliseconds since 1970"):
            await producer.send("orders", b"v", timestamp_ms=wrong)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (5, "messages must be a list of Message objects, not 5"),
        (Message(b"v"), r"messages must be a list of Message objects, not Message\("),
        ([b"v"], r"not of bytes: b'v' - pass Message\(value, key"),
        ([("orders", b"v")], "not of tuple: "),
    ],
)
async def test_send_many_takes_messages_only(own_server, messages, words):
    """Anything but messages raises PublishError, and nothing is published."""
    async with producer_of(own_server) as producer:
        with pytest.raises(PublishError, match=words):
            await producer.send_many(messages, "orders")
        assert producer.statistics().published_records == 0


async def test_an_error_shows_only_the_beginning_of_a_huge_argument(own_server):
    """The message of an error does not grow with the argument."""
    huge = "x" * 5_000_000
    async with producer_of(own_server) as producer:
        for call in (
            producer.send(huge, b""),
            producer.send("orders", b"", headers=[huge]),
            producer.send("orders", b"", partition=huge),
            producer.send("orders", b"", timestamp_ms=huge),
            producer.send_many([huge]),
        ):
            with pytest.raises(PublishError) as raised:
                await call
            assert len(str(raised.value)) < 1_000


@pytest.mark.parametrize("wrong", [5, "json", dict, object()])
def test_a_codec_has_a_method_that_encodes(wrong):
    """Anything else is refused when the producer is created."""
    with pytest.raises(ConfigurationError, match=r"codec must be an object with encode\(value\), not"):
        Producer(bootstrap_servers="b:9092", codec=wrong)


# ---- wrong order, wrong event loop -----------------------------------------------------------------------------------


async def test_stop_in_another_event_loop_raises_and_changes_nothing(own_server):
    """stop() in another event loop raises at once, and the producer goes on in its own."""
    async with producer_of(own_server) as producer, asyncio.timeout(SOON_S):
        with pytest.raises(ConsumerStateError, match="started in another event loop - stop it there"):
            await asyncio.to_thread(lambda: asyncio.run(producer.stop()))
        await producer.send("orders", b"v")


def test_stop_after_the_end_of_its_event_loop_does_nothing(own_server):
    """A producer whose event loop has ended can be stopped in the next one."""
    producer = producer_of(own_server)
    asyncio.run(producer.start())
    asyncio.run(producer.stop())
    assert repr(producer) == "<Producer stopped>"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the connections, which only their event loop could have closed
        del producer
        gc.collect()


async def test_stop_ends_a_start():
    """stop() during start() ends it with an error, and no task is left."""
    before = asyncio.all_tasks()
    producer = Producer(bootstrap_servers="127.0.0.1:1", start_timeout_ms=600_000)
    start = asyncio.create_task(producer.start())
    await asyncio.sleep(0.2)
    with pytest.raises(ConsumerStateError, match="not started"):
        await producer.send("orders", b"v")
    with pytest.raises(ConsumerStateError, match="already started"):
        await producer.start()
    await producer.stop()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(ConsumerStateError, match="this producer was stopped while it started"):
            await start

    await until(lambda: asyncio.all_tasks() <= before)


# ---- memory, cancellation and forgotten records ----------------------------------------------------------------------


async def test_without_blocking_the_first_record_and_transactions_wait(own_server):
    """With max_block_ms=0, a topic's first record waits for metadata, and a transaction for its requests."""
    async with producer_of(own_server, max_block_ms=0) as producer:
        await producer.send("orders", b"v")
    async with producer_of(own_server, max_block_ms=0, transactional_id="impatient") as producer:
        for _ in range(3):
            async with producer.transaction():
                await producer.send("orders", b"v")


async def test_a_canceled_send_many_ends_at_once(suspended):
    """send_many() that waits for memory can be canceled, although its first records are not acknowledged."""
    async with producer_of(suspended, buffer_memory=10_000) as producer:
        await producer.send("orders", b"v")
        suspended.pause()
        call = asyncio.create_task(producer.send_many([Message(b"v" * 1_000, partition=0)] * 50, "orders"))
        await until(lambda: producer.statistics().waiting_records)
        since = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert time.monotonic() - since < SOON_S
        assert producer.statistics().buffered_records > 0


async def test_full_memory_ends_send_many_in_time(suspended):
    """send_many() raises BufferFullError after max_block_ms, and does not wait for its first records."""
    async with producer_of(suspended, buffer_memory=10_000, max_block_ms=300) as producer:
        await producer.send("orders", b"v")
        suspended.pause()
        since = time.monotonic()
        with pytest.raises(BufferFullError):
            await producer.send_many([Message(b"v" * 1_000, partition=0)] * 50, "orders")
        assert time.monotonic() - since < SOON_S


async def test_calls_that_wait_for_memory_end_with_the_producer(suspended):
    """stop() ends calls that wait for memory with PublishError; no record gets a future that never completes."""
    async with producer_of(suspended, buffer_memory=10_000) as producer:
        await producer.send("orders", b"v", partition=0)
        suspended.pause()
        calls = [asyncio.create_task(producer.send("orders", b"v" * 1_000, partition=0)) for _ in range(50)]
        await until(lambda: producer.statistics().waiting_records)

    async with asyncio.timeout(SOON_S):
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in ends} == {PublishError}
    assert sum("the record was not sent" in str(one) for one in ends) >= 30


async def test_forgotten_futures_are_one_line_for_each_batch(suspended):
    """If the errors of a batch are not retrieved, asyncio logs one of them, not one for each record."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with producer_of(suspended, delivery_timeout_ms=2_500) as producer:
        await producer.send("orders", b"v", partition=0)
        suspended.pause()
        for _ in range(500):
            await producer.enqueue("orders", b"v", partition=0)
        await until(lambda: producer.statistics().failed_records == 500)
        gc.collect()

    assert {one["message"] for one in reported} == {"Future exception was never retrieved"}
    assert len(reported) <= 4


async def test_a_stop_that_loses_records_tells_their_number(suspended, recorder):
    """If stop_timeout_ms is over, one event has the number of records, and each future an error."""
    async with producer_of(suspended, hooks=[recorder]) as producer:
        await producer.send("orders", b"v", partition=0)
        suspended.pause()
        futures = [await producer.enqueue("orders", b"v", partition=0) for _ in range(7)]
    for one in futures:
        with pytest.raises(PublishError, match="the record was not acknowledged, and may be stored"):
            await one

    assert [one.records for one in recorder.of(RecordsAbandoned)] == [7]


async def test_no_record_is_lost_after_its_future_succeeded(own_server):
    """Canceled calls of every kind lose no record whose place was returned, and the producer goes on."""
    own_server.create_topic("canceled", 2)
    returned: set[tuple[int, int, bytes]] = set()
    async with producer_of(own_server, buffer_memory=20_000, linger_ms=2) as producer:

        async def send(number: int) -> None:
            value = b"%d " % number + b"x" * 1_000
            place = await producer.send("canceled", value)
            returned.add((place.partition, place.offset, value))

        async def send_many(_number: int) -> None:
            await producer.send_many([Message(b"x" * 1_000)] * 20, "canceled")

        async def flush(_number: int) -> None:
            await producer.flush()

        calls = []
        for number in range(600):
            call = (send, send, send, flush, send_many if number % 50 == 4 else send)[number % 5]
            calls.append(asyncio.create_task(call(number)))
            if number % 3:
                asyncio.get_running_loop().call_later(number % 37 / 1_000, calls[-1].cancel)
            await asyncio.sleep(0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        await producer.flush()
        await producer.send("canceled", b"last")

    assert {type(one) for one in results} == {asyncio.CancelledError, type(None)}
    found = await contents_of(Witness(own_server.bootstrap_servers), "canceled", 2)
    assert returned <= {(one.partition(), one.offset(), one.value()) for one in found}
    assert returned


# ---- never a wait without a word -------------------------------------------------------------------------------------


async def test_waiting_records_are_reported_once(suspended, recorder):
    """If a broker does not answer, one event says after three seconds which topic waits, and for what."""
    async with producer_of(suspended, hooks=[recorder]) as producer:
        await producer.send("orders", b"v", partition=0)
        suspended.pause()
        futures = [await producer.enqueue("orders", b"v", partition=number % 2) for number in range(20)]
        event = await recorder.wait_for(PublishDelayed)
        assert event == PublishDelayed("orders", "partition 0: no answer yet; 2 partitions wait")
        await asyncio.sleep(1.5)
        suspended.resume()
        await asyncio.gather(*futures)

    assert len(recorder.of(PublishDelayed)) == 1


async def test_a_quota_slows_down_and_is_counted(own_server):
    """A producer above its quota is throttled, loses nothing, and counts the time."""
    tool = KafkaTool(own_server.bootstrap_servers, CONFIGS)
    quota = (
        "--alter",
        "--add-config",
        "producer_byte_rate=20000",
        "--entity-type",
        "clients",
        "--entity-name",
        "greedy",
    )
    assert "Completed updating config" in await asyncio.to_thread(tool.output, *quota)
    own_server.create_topic("throttled")
    async with producer_of(own_server, client_id="greedy", stop_timeout_ms=30_000) as producer:
        async with asyncio.timeout(60):
            while not producer.statistics().throttled_s:
                await asyncio.gather(*(producer.send("throttled", b"v" * 10_000) for _ in range(5)))
        published, failed = producer.statistics().published_records, producer.statistics().failed_records

    assert failed == 0
    assert len(await contents_of(Witness(own_server.bootstrap_servers), "throttled")) == published


async def test_a_topic_that_is_deleted_meanwhile_is_reported(own_server, recorder):
    """A record to a topic that was deleted fails after delivery_timeout_ms, and an event says what is waited for."""
    own_server.create_topic("deleted")
    async with producer_of(own_server, hooks=[recorder], delivery_timeout_ms=6_000) as producer:
        await producer.send("deleted", b"v")
        await asyncio.to_thread(own_server.delete_topic, "deleted")
        with pytest.raises(PublishTimeoutError, match="last error: UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("deleted", b"v")

    assert recorder.of(PublishDelayed) == [PublishDelayed("deleted", "partition 0: UNKNOWN_TOPIC_OR_PARTITION")]


async def test_hooks_receive_events_also_with_shared_connections(own_server):
    """The hooks of a producer receive its own events if it shares the connections of a cluster."""
    own, of_cluster = EventRecorder(), EventRecorder()
    options = {"bootstrap_servers": own_server.bootstrap_servers, "hooks": [of_cluster]}
    async with SharedCluster(**options) as cluster, Producer(cluster=cluster, hooks=[own]) as producer:
        with pytest.raises(PublishError, match="the topic does not exist"):
            await producer.send("missing", b"v")

    assert [one.topic for one in own.of(PublishDelayed)] == ["missing"]
    assert of_cluster.of(PublishDelayed) == []


async def test_a_producer_ends_with_the_cluster_that_it_shares(own_server):
    """If a SharedCluster is stopped before its producer, the next calls raise soon and say what to do."""
    async with SharedCluster(bootstrap_servers=own_server.bootstrap_servers) as cluster:
        producer = Producer(cluster=cluster, stop_timeout_ms=1_000)
        await producer.start()
        await producer.send("orders", b"v")
    async with asyncio.timeout(SOON_S):
        for _ in range(2):
            with pytest.raises(PublishError, match="the shared cluster was stopped before this producer - stop its"):
                await producer.send("orders", b"v")
        await producer.flush()
        await producer.stop()


async def test_the_metrics_of_a_fenced_producer_can_be_read(own_server):
    """A producer that has failed still has statistics, and does not break the metrics of others."""
    async with producer_of(own_server, transactional_id="fenced") as older:
        async with older.transaction():
            await older.send("orders", b"1")
        async with producer_of(own_server, transactional_id="fenced"):
            with pytest.raises(ProducerFencedError):
                async with older.transaction():
                    await older.send("orders", b"2")
            text = (await exposition(older, registry=CollectorRegistry()))[0].decode()

    assert 'tailrace_producer_records_total{client_id="tailrace"} 1.0' in text


FORKING = """
import asyncio, os, sys
from tailrace import ConsumerStateError, Producer

async def main():
    async with Producer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send("orders", b"v")
        if (child := os.fork()) == 0:
            try:
                await producer.enqueue("orders", b"v")
            except ConsumerStateError:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (await producer.send("orders", b"v")).topic)

asyncio.run(main())
"""


async def test_a_forked_child_cannot_publish_with_the_producer_of_its_parent(own_server):
    """The child would write to the connection of the parent, with the same sequence numbers; its call raises."""
    command = (sys.executable, "-W", "ignore", "-c", FORKING, own_server.bootstrap_servers)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()

    assert output.decode().split() == ["7", "orders"]
