"""Offsets, lag, health and metrics of a consumer, and options that change while it runs."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from confluent_kafka import Producer

from tailrace import ConfigurationError, ConsumerStateError, TopicPartition
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest
from tailrace.protocol.records import FetchRequest, ListOffsetsRequest
from tests.support.consumer_group import until
from tests.support.proxied_broker import numbers

GROUP, FETCH = "consumer-coordinator-metrics", "consumer-fetch-manager-metrics"


def of(metrics, group) -> dict[str, float]:
    """Return the values of one metric group, by name, of the whole consumer."""
    return {
        name.name: value for name, value in metrics.items() if name.group == group and "topic" not in dict(name.tags)
    }


async def test_offsets_returns_each_kind_of_offset(new_topic, new_consumer, witness, group):
    """offsets() returns fetched, finished, committed and end offsets by name and by index, as a copy."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    witness.produce(topic, (b"%d" % n for n in range(100)))

    async with new_consumer(topic, group_id=group, enable_auto_commit=False, ack="manual") as consumer:
        records = [await consumer.getone() for _ in range(10)]
        for record in records[:6]:
            consumer.ack(record)
        await consumer.commit()
        offsets = consumer.offsets()
        consumer.offsets("done").clear()
        one_kind = consumer.offsets("done")
        with pytest.raises(ConfigurationError, match=r"kind must be one of .*, not 'other'"):
            consumer.offsets("other")
        ends = await witness.ends(topic, 1)
        highwater = consumer.highwater(place)

    assert (offsets.fetch, offsets.commit, offsets.done) == ({place: 10}, {place: 6}, {place: 6})
    assert offsets.highwater == {place: ends[0]} == {place: highwater}
    assert (offsets[0], offsets[1], offsets[2], offsets[3]) == (
        offsets.fetch,
        offsets.highwater,
        offsets.commit,
        offsets.done,
    )
    assert one_kind == {place: 6}
    assert pickle.loads(pickle.dumps(offsets)) == offsets


async def test_lag_is_the_end_offset_minus_the_position(new_topic, new_consumer, witness, group):
    """lag() returns the end offset minus the position for each partition, and the total."""
    topic = new_topic(2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    for number in range(2):
        witness.produce(topic, (b"%d" % n for n in range(50)), partition=number)

    async with new_consumer(topic, group_id=group) as consumer:
        read = [await consumer.getone() for _ in range(30)]
        lag = await consumer.lag()
        behind = {place: 50 - sum(one.topic_partition == place for one in read) for place in (first, second)}
        witness.produce(topic, [b"x"] * 5, partition=0)
        later = await consumer.lag(first)
        with pytest.raises(ConsumerStateError, match="not assigned"):
            await consumer.lag(TopicPartition(topic, 0)._replace(topic=new_topic()))

    assert (lag.partitions, lag.total) == (behind, 70)
    assert later.partitions == {first: behind[first] + 5}


async def test_lag_omits_partitions_revoked_meanwhile(witness_of):
    """If partitions are revoked while lag() waits for end offsets, it returns the lag of the remaining ones."""
    topic = witness_of.topic_with(5, 2)

    async with witness_of.consumer() as consumer:
        await consumer.assign((topic, 0, 1), (topic, 1, 2))
        await consumer.end_offsets(consumer.assignment())
        with witness_of.proxy.hold_answer(ListOffsetsRequest) as held:
            asked = asyncio.create_task(consumer.lag())
            await held.wait_applied()
            await consumer.assign((topic, 0, 3))
            held.release()
        lag = await asyncio.wait_for(asked, 30)

    assert lag == ({TopicPartition(topic, 0): 2}, 2)


async def test_health_reports_the_state_of_a_member(witness_of, group):
    """health() is "starting" before the first assignment, then "ok", and "degraded" without a coordinator."""
    topic = witness_of.topic_with(10)
    options = {"group_id": group, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}

    async with witness_of.consumer(topic, **options) as consumer:
        starting = consumer.health()
        await consumer.getone()
        good = consumer.health()
        witness_of.proxy.refuse()
        async with asyncio.timeout(20):
            while consumer.health().status != "degraded":
                await consumer.getone(timeout_ms=50)
        bad = consumer.health()
        witness_of.proxy.restore()

    assert (starting.status, starting.is_live, starting.is_ready) == ("starting", True, False)
    assert (good.status, good.is_ready, good.partitions) == ("ok", True, 1)
    assert good.heartbeat_age_s is not None
    assert 0 <= good.heartbeat_age_s < 15
    assert (bad.status, bad.is_live, bool(bad.detail)) == ("degraded", True, True)


async def test_group_metrics_agree_with_the_requests(witness_of, group):
    """The metrics of heartbeats, joins, syncs and commits agree with the requests that the proxy has seen."""
    topic = witness_of.topic_with(100)
    options = {
        "group_id": group,
        "client_id": group,
        "heartbeat_interval_ms": 100,
        "auto_commit_interval_ms": None,
    }

    async with witness_of.consumer(topic, **options) as consumer:
        await consumer.getone()
        with witness_of.proxy.delay_answer(OffsetCommitRequest, 0.3):
            await consumer.commit()
        with witness_of.proxy.delay_answer(HeartbeatRequest, 0.3):
            async with asyncio.timeout(20):
                while of(consumer.metrics(), GROUP)["heartbeat-response-time-max"] < 300:
                    await consumer.getone(timeout_ms=50)
        metrics = consumer.metrics()
        answers = witness_of.proxy.answers(JoinGroupRequest, client_id=group)
        joins = sum(not answer.message.error_code for answer in answers)
        beats = len(witness_of.proxy.answers(HeartbeatRequest, client_id=group))
        commits = len(witness_of.proxy.answers(OffsetCommitRequest, client_id=group))

    found = of(metrics, GROUP)
    assert (found["join-total"], found["sync-total"], found["commit-total"]) == (joins, 1, commits)
    assert abs(found["heartbeat-total"] - beats) <= 1
    assert found["commit-latency-max"] >= 300
    assert found["commit-latency-avg"] <= found["commit-latency-max"]
    assert found["join-time-max"] >= found["join-time-avg"] > 0
    assert found["sync-time-max"] > 0
    assert 0 <= found["last-heartbeat-seconds-ago"] < 15
    assert min(found[f"{name}-rate"] for name in ("heartbeat", "join", "sync", "commit")) > 0
    assert (found["assigned-partitions"], found["rebalance-total"]) == (1, 1)
    assert {name.tags for name in metrics if name.group == GROUP} == {(("client-id", group), ("group-id", group))}


async def test_the_fetch_metrics_and_the_lag_have_kafkas_names(new_topic, new_consumer, witness, group):
    """The metrics of fetches and lag have Kafka's names, under the prefix metric_group_prefix."""
    topic = new_topic(2)
    for number, count in ((0, 60), (1, 40)):
        witness.produce(topic, (b"x" * 100 for _ in range(count)), partition=number)

    async with new_consumer(topic, group_id=group, metric_group_prefix="orders") as consumer:
        await consumer.getmany(max_records=100, min_records=100)
        await consumer.seek(TopicPartition(topic, 0), 10)
        # A fetch is reported after its records are delivered.
        await until(lambda: of(consumer.metrics(), "orders-fetch-manager-metrics")["records-consumed-total"] >= 100)
        metrics = consumer.metrics()

    found = of(metrics, "orders-fetch-manager-metrics")
    lags = {dict(name.tags)["partition"]: value for name, value in metrics.items() if name.name == "records-lag"}
    assert found["records-consumed-total"] >= 100
    assert found["bytes-consumed-total"] > 10_000
    assert found["fetch-total"] >= 1
    assert found["fetch-latency-avg"] > 0
    assert (lags, found["records-lag-max"]) == ({"0": 50, "1": 0}, 50)
    assert of(metrics, "orders-coordinator-metrics")["assigned-partitions"] == 2


async def test_lag_excludes_records_of_an_open_transaction(new_topic, new_consumer, kafka_server, group):
    """With read_committed, lag() and the metrics count no records after the last stable offset."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    await asyncio.to_thread(producer.init_transactions, 20)
    producer.begin_transaction()
    for value in (b"0", b"1", b"2"):
        producer.produce(topic, value)
    await asyncio.to_thread(producer.flush, 20)

    async with new_consumer(topic, group_id=group, isolation_level="read_committed") as consumer:
        await until(lambda: consumer.highwater(place) == 3)
        lags = [value for name, value in consumer.metrics().items() if name.name == "records-lag-max"]
        lag = await consumer.lag()
    await asyncio.to_thread(producer.abort_transaction, 20)

    assert (lags, lag.total) == ([0], 0)


async def test_reconfigure_changes_options(witness_of, group):
    """reconfigure() changes the next fetches, and changes nothing if one option is invalid or cannot change."""
    topic = witness_of.topic_with(10)
    proxy = witness_of.proxy

    async with witness_of.consumer(topic, group_id=group, client_id=group, fetch_max_wait_ms=100) as consumer:
        await consumer.getone()
        before = {frame.message.max_wait_ms for frame in proxy.requests(FetchRequest, client_id=group)}
        await consumer.reconfigure(fetch_max_wait_ms=150, fetch_min_bytes=7, consumer_timeout_ms=200)
        async with asyncio.timeout(20):
            while not {
                (frame.message.max_wait_ms, frame.message.min_bytes)
                for frame in proxy.requests(FetchRequest, client_id=group)
            } & {(150, 7)}:
                await consumer.getmany(timeout_ms=100)
        for wrong in ({"group_id": "other"}, {"fetch_max_wait_ms": -1}, {"no_such": 1}, {"auto_offset_reset": "x"}):
            with pytest.raises(ConfigurationError):
                await consumer.reconfigure(fetch_min_bytes=9, **wrong)
        last = proxy.requests(FetchRequest, client_id=group)[-1].message.min_bytes

    assert (before, last) == ({100}, 7)


async def test_several_connections_fetch_at_once(witness_of, group):
    """With num_fetchers=4, four connections fetch, each partition by one of them, and no record is lost."""
    topic = witness_of.topic_with(50, partitions=4)
    options = {"num_fetchers": 4, "client_id": group, "auto_offset_reset": "earliest"}

    async with witness_of.consumer(topic, **options) as consumer:
        records = await consumer.getmany(min_records=200, max_records=200)
        assert await consumer.getone(timeout_ms=300) is None

    frames = witness_of.proxy.requests(FetchRequest, client_id=group)
    partitions = {}
    for frame in frames:
        for one in frame.message.partitions:
            partitions.setdefault(one.partition, set()).add(frame.connection)
    assert sorted(numbers(records)) == sorted(list(range(50)) * 4)
    assert len({frame.connection for frame in frames}) == 4
    assert {len(connections) for connections in partitions.values()} == {1}


async def test_the_high_watermark_is_known_after_a_reassignment(new_topic, new_consumer, witness):
    """highwater() is known again after each assignment, although a broker omits an unchanged one in a fetch session."""
    topic = new_topic()
    witness.fill(topic, 1, 5)
    place = TopicPartition(topic, 0)

    async with new_consumer() as consumer:
        for _ in range(3):
            await consumer.assign((topic, 0, 5))
            await until(lambda: consumer.highwater(place) == 5)

        assert consumer.offsets("highwater") == {place: 5}
