"""Samples of the metrics, read from statistics."""

from __future__ import annotations

from tailrace.core.metrics import DurationMeter
from tailrace.observe.metrics import samples
from tailrace.observe.statistics import (
    AppStatistics,
    ConsumerStatistics,
    Durations,
    HandlerStatistics,
    PartitionStatistics,
    PoolStatistics,
)


def consumer(*partitions: PartitionStatistics, **values: object) -> ConsumerStatistics:
    sizes = {"queued_records": 0, "buffered_bytes": 0, "reserved_bytes": 0, "ignored_maps": 0}
    return ConsumerStatistics(client_id="c", group_id="g", partitions=partitions, **{**sizes, **values})


def values_of(*found) -> dict[tuple[str, ...], float | Durations]:
    """Return the values by name and label values."""
    return {(one.metric.name, *one.labels.values()): one.value for one in samples(found)}


def test_each_number_has_its_labels():
    """A sample of a handler has group and name, and one of a partition has group, topic and number."""
    app = AppStatistics(
        is_ready=True,
        handlers=(HandlerStatistics(group_id="g", handler="charge", concurrency=3, records=7),),
        consumers=(consumer(PartitionStatistics(topic="orders", partition=4, position=10, lag_s=1.5)),),
    )

    found = values_of(app)

    assert found["tailrace_handler_records_total", "g", "charge"] == 7
    assert found["tailrace_partition_position", "g", "orders", "4"] == 10
    assert found["tailrace_partition_lag_seconds", "g", "orders", "4"] == 1.5
    assert found[("tailrace_app_ready",)] == 1


def test_an_unknown_value_has_no_sample():
    """A partition without a known end has no sample of its lag, and a handler of records none of its batches."""
    app = AppStatistics(
        handlers=(HandlerStatistics(group_id="g", handler="charge", concurrency=1),),
        consumers=(consumer(PartitionStatistics(topic="orders", partition=0)),),
    )

    names = {name for name, *_ in values_of(app)}

    assert "tailrace_partition_paused" in names
    assert not names & {"tailrace_partition_lag", "tailrace_partition_end", "tailrace_handler_batches_total"}


def test_samples_with_the_same_labels_become_one():
    """Samples with the same labels become one: counts are added, and the greatest age counts."""
    one = consumer(queued_records=1, fetches=Durations(1.0, (1,) * 18), heartbeat_age_s=1.0)
    two = consumer(queued_records=2, fetches=Durations(2.0, (2,) * 18), heartbeat_age_s=0.5)

    found = values_of(one, two, AppStatistics(is_ready=True), AppStatistics(is_ready=False))

    assert found["tailrace_consumer_queued_records", "g", "c"] == 3
    assert found["tailrace_consumer_fetch_seconds", "g", "c"] == Durations(3.0, (3,) * 18)
    assert found["tailrace_consumer_heartbeat_age_seconds", "g", "c"] == 1.0
    assert found["tailrace_consumer_info", "g", "c", "unknown", "unknown"] == 1
    assert found[("tailrace_app_ready",)] == 0


def test_samples_have_the_number_of_their_worker():
    """A sample of a worker has the worker's number, and a worker that did not answer is down."""
    pool = PoolStatistics(workers={0: AppStatistics(is_ready=True), 1: None}, restarts={1: 3})

    found = values_of(pool)

    assert found["tailrace_app_ready", "0"] == 1
    assert ("tailrace_app_ready", "1") not in found
    assert found["tailrace_worker_up", "0"] == 1
    assert found["tailrace_worker_up", "1"] == 0
    assert found["tailrace_worker_restarts_total", "1"] == 3


def test_durations_have_a_mean_and_cumulative_counts():
    """A duration at a bound is counted in the bucket below it."""
    meter = DurationMeter()
    meter.note(0.001, 3)
    meter.note(1000.0)

    durations = meter.durations

    assert durations.count == 4
    assert durations.cumulative()[1:4] == (0, 3, 3)
    assert durations.cumulative()[-2:] == (3, 4)
    assert durations.mean_s == 1000.003 / 4
    assert Durations().mean_s is None
