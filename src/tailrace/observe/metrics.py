"""Table of all metrics: name, kind, unit, labels and meaning.

A metric is a field of a class of ``observe.statistics``; ``observe.samples`` reads the values. The number of label
values is bounded by the program and its assignment: no label contains a key, an offset or an error text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["LABELS", "METRICS", "Kind", "MetricDefinition", "Subject"]

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]
Subject: TypeAlias = Literal["handler", "group", "partition", "consumer", "app", "worker"]

LABELS: dict[Subject, dict[str, str]] = {
    "handler": {"group": "group_id", "handler": "handler"},
    "group": {"group": "group_id"},
    "partition": {"group": "group_id", "topic": "topic", "partition": "partition"},
    "consumer": {"group": "group_id", "client_id": "client_id"},
    "app": {},
    "worker": {"worker": "worker"},
}
"""Labels of the metrics of each subject, with the fields that they are read from."""


class MetricDefinition(NamedTuple):
    """One metric.

    Attributes:
        subject: subject that has the metric; ``LABELS`` has its labels.
        name: name in Prometheus.
        kind: kind of the metric; an "info" is a gauge of 1 whose labels are the values.
        unit: unit of the values; empty for a number without a unit.
        field: field of the subject's statistics; for an "info", fields separated by spaces.
        meaning: description, as a noun phrase.
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
        "Durations of calls, failed ones included, each for one record or batch; records of a handler that does not"
        " suspend are measured together, and counted with their mean",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_in_flight",
        "gauge",
        "records",
        "in_flight",
        "Records that run or wait for their next attempt",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_waiting",
        "gauge",
        "records",
        "waiting",
        "Records read and not started: queue depth",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_concurrency",
        "gauge",
        "calls",
        "concurrency",
        "Maximum number of records, or batches, that run at once",
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
        "Failed attempts; each failed record of a batch counts",
    ),
    MetricDefinition(
        "handler",
        "tailrace_handler_retries_total",
        "counter",
        "records",
        "retries",
        "Further attempts in place; each record of a batch counts",
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
        "Records that failed for good and block their lane, because no topic takes them",
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
        "Time without a committed transaction although there are records; 0 below a limit",
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
        "End offset of the log as of the last fetch; while the partition is not fetched, as of at most five seconds"
        " after the scrape before; with `read_committed`, the last stable offset",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_lag",
        "gauge",
        "records",
        "lag",
        "End offset minus committed offset, as in Kafka's tools; without a committed offset, minus the lowest"
        " unfinished offset",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_work_lag",
        "gauge",
        "records",
        "work_lag",
        "Offsets up to the end that are not finished: lag without records that are finished and not committed, because"
        " of the commit interval or an earlier unfinished record",
    ),
    MetricDefinition(
        "partition",
        "tailrace_partition_lag_seconds",
        "gauge",
        "seconds",
        "lag_s",
        "Age of the oldest unfinished record by its timestamp; 0 if all records are finished, absent if that record was"
        " not fetched yet",
    ),
    MetricDefinition(
        "partition", "tailrace_partition_paused", "gauge", "", "is_paused", "1 if the partition is paused, otherwise 0"
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
        "Records decoded and not delivered",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_buffered_bytes",
        "gauge",
        "bytes",
        "buffered_bytes",
        "Bytes fetched and not decoded",
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
        "Offsets in the fetched batches",
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
        "Durations of commit requests until the broker's answer, refused ones included",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_failed_commits_total",
        "counter",
        "commits",
        "failed_commits",
        "Commits refused or not answered",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_rebalance_seconds",
        "histogram",
        "seconds",
        "rebalances",
        "Durations of rebalances, from the start of the member's join to its assignment",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_heartbeat_age_seconds",
        "gauge",
        "seconds",
        "heartbeat_age_s",
        "Time since the last acknowledged heartbeat was sent; only in a group",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_ignored_maps_total",
        "counter",
        "commits",
        "ignored_maps",
        "Commits whose metadata was foreign, unreadable or of another log",
    ),
    MetricDefinition(
        "consumer",
        "tailrace_consumer_info",
        "info",
        "",
        "decoder checksum",
        "Implementations in use: `decoder` is compiled or python, `checksum` is hardware or software",
    ),
    # ---- the process of an app
    MetricDefinition(
        "app", "tailrace_app_live", "gauge", "", "is_live", "1 unless only a restart can heal the app, as `/livez`"
    ),
    MetricDefinition(
        "app", "tailrace_app_ready", "gauge", "", "is_ready", "1 from the first assignment to the stop, as `/readyz`"
    ),
    MetricDefinition(
        "app",
        "tailrace_app_loop_lag_seconds",
        "histogram",
        "seconds",
        "loop_lag",
        "Delays of timers by a busy event loop, sampled four times in `heartbeat_interval_ms`",
    ),
    MetricDefinition(
        "app",
        "tailrace_app_loop_blocked_seconds",
        "gauge",
        "seconds",
        "loop_blocked_s",
        "Time for which the event loop has been blocked; 0 up to `heartbeat_interval_ms`",
    ),
    # ---- workers of a pool
    MetricDefinition(
        "worker",
        "tailrace_worker_up",
        "gauge",
        "",
        "is_up",
        "1 if the worker process answers, otherwise 0; its other metrics are absent then",
    ),
    MetricDefinition(
        "worker", "tailrace_worker_restarts_total", "counter", "restarts", "restarts", "Restarts of the worker process"
    ),
)
