"""Table of all metrics (name, kind, unit, labels and meaning), and their values.

The value of a metric is a field of a class in ``observe.statistics``; ``samples`` reads it. Labels contain no
keys, offsets or error texts, so the number of label values does not grow with the number of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from tailrace.observe.statistics import (
    AppStatistics,
    ConsumerStatistics,
    Durations,
    PoolStatistics,
    ProducerStatistics,
)

__all__ = ["LABELS", "METRICS", "Kind", "MetricDefinition", "Sample", "Statistics", "Subject", "samples"]

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]
Subject: TypeAlias = Literal["handler", "group", "partition", "consumer", "producer", "app", "worker"]

LABELS: dict[Subject, dict[str, str]] = {
    "handler": {"group": "group_id", "handler": "handler"},
    "group": {"group": "group_id"},
    "partition": {"group": "group_id", "topic": "topic", "partition": "partition"},
    "consumer": {"group": "group_id", "client_id": "client_id"},
    "producer": {"client_id": "client_id"},
    "app": {},
    "worker": {"worker": "worker"},
}
"""Labels of each subject's metrics, mapped to the fields of its statistics that contain the values of the labels."""


class MetricDefinition(NamedTuple):
    """One metric.

    Attributes:
        subject: kind of object that the metric describes; ``LABELS`` has its labels.
        name: name in Prometheus.
        kind: type of the metric; "info" is a gauge that is always 1 and has the information in its labels.
        unit: unit of the values; empty for a number without a unit.
        field: field of the subject's statistics; for "info", the fields that become labels, separated by spaces.
        meaning: description.
    """

    subject: Subject
    name: str
    kind: Kind
    unit: str
    field: str
    meaning: str


METRICS = (
    # ---- handlers
    MetricDefinition(
        "handler", "tailrace_handler_records_total", "counter", "records", "records", "Records handled successfully"
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_batches_total",
        "counter",
        "batches",
        "batches",
        "Batches handled without a failed record; only for batch handlers",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_duration_seconds",
        "histogram",
        "seconds",
        "calls",
        "Durations of handler calls, including failed ones; a call handles one record or one batch. Calls that do not"
        " suspend are measured together, and each is counted with their mean duration",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_in_flight",
        "gauge",
        "records",
        "in_flight",
        "Records whose handler runs, or that wait for their next attempt",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_waiting",
        "gauge",
        "records",
        "waiting",
        "Records that were delivered to the app and whose handler is not called yet (queue depth)",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_concurrency",
        "gauge",
        "calls",
        "concurrency",
        "Maximum number of calls at the same time, each for one record or one batch",
    ),
    MetricDefinition(
        "handler", "tailrace_handler_paused", "gauge", "", "is_paused", "1 if the handler is paused, otherwise 0"
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_failures_total",
        "counter",
        "records",
        "failures",
        "Failed attempts to handle a record; in a batch, each failed record counts",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_retries_total",
        "counter",
        "records",
        "retries",
        "Repeated attempts to handle a record, except those from a retry topic; in a batch, each record counts",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_delayed_total",
        "counter",
        "records",
        "delayed",
        "Failed records published to a retry topic",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_dead_letters_total",
        "counter",
        "records",
        "dead_letters",
        "Failed records published to the dead-letter topic",
    ),
    MetricDefinition(
        "handler", "tailrace_handler_skipped_total", "counter", "records", "skipped", "Failed records that were skipped"
    ),
    # ---- groups of an app
    MetricDefinition(
        "group",
        "tailrace_group_blocked_records",
        "gauge",
        "records",
        "blocked",
        "Records that failed for good and block their lane: they have no dead-letter topic, or could not be published"
        " to it or to a retry topic",
    ),
    MetricDefinition(
        "group",
        "tailrace_group_unmatched_total",
        "counter",
        "records",
        "unmatched",
        "Records skipped because no handler's `when=` accepts them",
    ),
    MetricDefinition(
        "group",
        "tailrace_group_transactions_stalled_seconds",
        "gauge",
        "seconds",
        "stalled_s",
        "Time for which the group has had records but committed no transaction; 0 for the first three transaction"
        " timeouts",
    ),
    # ---- assigned partitions
    MetricDefinition(
        "partition",
        "tailrace_partition_position",
        "gauge",
        "offsets",
        "position",
        "Offset of the next record to start",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_committed",
        "gauge",
        "offsets",
        "committed",
        "Committed offset, as last acknowledged by the broker",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_end",
        "gauge",
        "offsets",
        "end",
        "End offset of the log, as of the last fetch; with `read_committed`, the last stable offset. For a partition"
        " that is not fetched, such as a paused one, it is requested within five seconds after each scrape",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_lag",
        "gauge",
        "records",
        "lag",
        "End offset minus committed offset, as in Kafka's tools; without a committed offset, end offset minus lowest"
        " unfinished offset",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_work_lag",
        "gauge",
        "records",
        "work_lag",
        "Unfinished offsets before the end offset; unlike the lag, this number does not include finished records whose"
        " offsets are not committed yet",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_lag_seconds",
        "gauge",
        "seconds",
        "lag_s",
        "Age of the oldest unfinished record by its timestamp; 0 if all records are finished, absent until this record"
        " is fetched",
    ),
    MetricDefinition(
        "partition", "tailrace_partition_paused", "gauge", "", "is_paused", "1 if the partition is paused, otherwise 0"
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_blocked",
        "gauge",
        "",
        "is_blocked",
        '1 if the partition waits at a batch that cannot be read (`on_corrupt_batch="pause"`), otherwise 0',
    ),
    # ---- consumers
    MetricDefinition(
        "consumer",
        "tailrace_consumer_assigned_partitions",
        "gauge",
        "partitions",
        "assigned_partitions",
        "Assigned partitions",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_queued_records",
        "gauge",
        "records",
        "queued_records",
        "Records that are decoded and not delivered yet",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_buffered_bytes",
        "gauge",
        "bytes",
        "buffered_bytes",
        "Bytes that are fetched and not decoded yet",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_reserved_bytes",
        "gauge",
        "bytes",
        "reserved_bytes",
        "Bytes reserved for fetches in flight",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_fetched_records_total",
        "counter",
        "records",
        "fetched_records",
        "Offsets in the fetched batches; where the log has gaps, there are fewer records",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_fetched_bytes_total",
        "counter",
        "bytes",
        "fetched_bytes",
        "Size of the fetched batches",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_fetch_seconds",
        "histogram",
        "seconds",
        "fetches",
        "Durations of fetches, including the broker's wait of up to `fetch_max_wait_ms` for records",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_commit_seconds",
        "histogram",
        "seconds",
        "commits",
        "Durations of commit requests until the broker's answer, including refused ones",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_failed_commits_total",
        "counter",
        "commits",
        "failed_commits",
        "Commits that were refused or not answered",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_skipped_batches_total",
        "counter",
        "batches",
        "skipped_batches",
        'Batches that could not be read and were skipped (`on_corrupt_batch="skip"`)',
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_rebalance_seconds",
        "histogram",
        "seconds",
        "rebalances",
        "Durations of rebalances, from the member's revocation or join to its assignment",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_heartbeat_age_seconds",
        "gauge",
        "seconds",
        "heartbeat_age_s",
        "Time since the last acknowledged heartbeat was sent; absent without a group",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_ignored_maps_total",
        "counter",
        "commits",
        "ignored_maps",
        "Commits of assigned partitions whose metadata is not a usable offset map: it is from the user or another"
        " client, is unreadable, or lists records that the log does not contain",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_info",
        "info",
        "",
        "decoder checksum",
        "Implementations in use: `decoder` is compiled or python, `checksum` is hardware or software; either may be"
        " unknown",
    ),
    # ---- producers
    MetricDefinition(
        "producer",
        "tailrace_producer_buffered_records",
        "gauge",
        "records",
        "buffered_records",
        "Records that are not acknowledged",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_buffered_bytes",
        "gauge",
        "bytes",
        "buffered_bytes",
        "Size of the unacknowledged records before compression; from `buffer_memory` on, calls wait",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_buffer_memory_bytes",
        "gauge",
        "bytes",
        "buffer_memory",
        "Maximum size of the unacknowledged records, the option `buffer_memory`",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_waiting_records",
        "gauge",
        "records",
        "waiting_records",
        "Records that wait for memory",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_requests_in_flight",
        "gauge",
        "requests",
        "requests_in_flight",
        "Produce requests that are not answered",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_records_total",
        "counter",
        "records",
        "published_records",
        "Records that were acknowledged",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_bytes_total",
        "counter",
        "bytes",
        "published_bytes",
        "Size of the acknowledged batches, after compression",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_uncompressed_bytes_total",
        "counter",
        "bytes",
        "uncompressed_bytes",
        "Size of the acknowledged batches before compression",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_batches_total",
        "counter",
        "batches",
        "published_batches",
        "Batches that were acknowledged",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_failures_total",
        "counter",
        "records",
        "failed_records",
        "Records that were refused or not acknowledged in time",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_retries_total",
        "counter",
        "batches",
        "retried_batches",
        "Repeated attempts to send a batch",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_request_duration_seconds",
        "histogram",
        "seconds",
        "requests",
        "Durations of Produce requests until the answer",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_queue_duration_seconds",
        "histogram",
        "seconds",
        "queue_times",
        "Durations from the first record of a batch until the batch is sent for the first time",
    ),
    MetricDefinition(
        "producer",
        "tailrace_producer_throttled_seconds_total",
        "counter",
        "seconds",
        "throttled_s",
        "Time for which brokers have throttled the producer because of a quota",
    ),
    # ---- the process of an app
    MetricDefinition(
        "app",
        "tailrace_app_live",
        "gauge",
        "",
        "is_live",
        "1 if the app is live, 0 if it needs a restart; see `/livez`",
    ),
    MetricDefinition(
        "app", "tailrace_app_ready", "gauge", "", "is_ready", "1 if the app is ready, otherwise 0; see `/readyz`"
    ),
    MetricDefinition(
        "app",
        "tailrace_app_loop_lag_seconds",
        "histogram",
        "seconds",
        "loop_lag",
        "Delays with which the event loop calls a timer, measured four times per `heartbeat_interval_ms`",
    ),
    MetricDefinition(
        "app",
        "tailrace_app_loop_blocked_seconds",
        "gauge",
        "seconds",
        "loop_blocked_s",
        "Time for which the event loop has been blocked; 0 while this is not longer than `heartbeat_interval_ms`",
    ),
    # ---- workers of a pool
    MetricDefinition(
        "worker",
        "tailrace_worker_up",
        "gauge",
        "",
        "is_up",
        "1 if the worker process answers; otherwise 0, and its other metrics are absent",
    ),
    MetricDefinition(
        "worker", "tailrace_worker_restarts_total", "counter", "restarts", "restarts", "Restarts of the worker process"
    ),
)


# ---- samples ---------------------------------------------------------------------------------------------------------

Statistics: TypeAlias = AppStatistics | ConsumerStatistics | PoolStatistics | ProducerStatistics

_METRICS_BY_SUBJECT = {subject: tuple(one for one in METRICS if one.subject == subject) for subject in LABELS}


class Sample(NamedTuple):
    """Value of one metric with its labels."""

    metric: MetricDefinition
    labels: Mapping[str, str]
    value: float | Durations


class _WorkerState(NamedTuple):
    worker: int
    is_up: bool
    restarts: int


def samples(found: Iterable[Statistics]) -> list[Sample]:
    """Return the samples of all statistics, one for each metric and combination of labels.

    Several objects may have the same labels, such as two consumers of a group in one process. Their values are merged:
    of gauges that are 0 or 1, the lowest value is returned; of values of partitions, of gauges in seconds and of
    metrics of kind "info", which are always 1, the greatest; all other values are added.
    """
    merged: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for statistics in found:
        for one in _samples(statistics):
            key = one.metric.name, tuple(one.labels.items())
            before = merged.get(key)
            merged[key] = one if before is None else one._replace(value=_merged(one.metric, before.value, one.value))
    return list(merged.values())


def _merged(metric: MetricDefinition, first: float | Durations, second: float | Durations) -> float | Durations:
    if isinstance(first, Durations) and isinstance(second, Durations):
        return first + second
    assert not isinstance(first, Durations)
    assert not isinstance(second, Durations)
    if metric.kind == "gauge" and not metric.unit:
        return min(first, second)  # 0 or 1: two apps together are ready only if both are
    if metric.kind == "info" or metric.subject == "partition" or (metric.kind == "gauge" and metric.unit == "seconds"):
        return max(first, second)
    return first + second


def _samples(found: Statistics) -> Iterator[Sample]:
    match found:
        case PoolStatistics():
            for worker, statistics in found.workers.items():
                yield from _samples_of(
                    "worker", _WorkerState(worker, statistics is not None, found.restarts.get(worker, 0))
                )
                for one in () if statistics is None else _samples(statistics):
                    yield one._replace(labels={"worker": str(worker), **one.labels})
        case AppStatistics():
            yield from _samples_of_app(found)
        case ConsumerStatistics():
            yield from _samples_of("consumer", found)
            for partition in found.partitions:
                yield from _samples_of("partition", partition, group=found.group_id or "")
        case ProducerStatistics():
            yield from _samples_of("producer", found)


def _samples_of_app(found: AppStatistics) -> Iterator[Sample]:
    yield from _samples_of("app", found)
    for handler in found.handlers:
        yield from _samples_of("handler", handler)
    for group in found.groups:
        yield from _samples_of("group", group)
    for consumer in found.consumers:
        yield from _samples(consumer)
    for producer in found.producers:
        yield from _samples(producer)


def _samples_of(subject: Subject, found: object, **known: str) -> Iterator[Sample]:
    """Yield the samples of one object; ``known`` are labels that are not attributes of ``found``."""
    labels = {label: known.get(label) or _text(getattr(found, field, None)) for label, field in LABELS[subject].items()}
    for metric in _METRICS_BY_SUBJECT[subject]:
        if metric.kind == "info":
            values = {field: str(getattr(found, field)) for field in metric.field.split()}
            yield Sample(metric, {**labels, **values}, 1.0)
        elif (value := getattr(found, metric.field)) is not None:
            yield Sample(metric, labels, value if isinstance(value, Durations) else float(value))


def _text(value: object) -> str:
    return "" if value is None else str(value)
