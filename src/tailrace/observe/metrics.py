"""Table of all metrics: name, kind, unit, labels and meaning.

A metric is a field of a class of ``observe.statistics``; ``observe.samples`` reads the values. The number of label
values is bounded by the program and its assignment: no label contains a key, an offset or an error text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["LABELS", "METRICS", "Kind", "Metric", "Subject"]

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


class Metric(NamedTuple):
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
    Metric(
        "handler", "tailrace_handler_records_total", "counter", "records", "records", "Records handled successfully"
    ),
    Metric(
        "handler",
        "tailrace_handler_batches_total",
        "counter",
        "batches",
        "batches",
        "Batches handled without a failed record; only for batch handlers",
    ),
    Metric(
        "handler",
        "tailrace_handler_duration_seconds",
        "histogram",
        "seconds",
        "calls",
        "Durations of calls, failed ones included, each for one record or batch; records of a handler that does not"
        " suspend are measured together, and counted with their mean",
    ),
    Metric(
        "handler",
        "tailrace_handler_in_flight",
        "gauge",
        "records",
        "in_flight",
        "Records that run or wait for their next attempt",
    ),
    Metric(
        "handler",
        "tailrace_handler_waiting",
        "gauge",
        "records",
        "waiting",
        "Records read and not started: queue depth",
    ),
    Metric(
        "handler",
        "tailrace_handler_concurrency",
        "gauge",
        "calls",
        "concurrency",
        "Maximum number of records, or batches, that run at once",
    ),
    Metric("handler", "tailrace_handler_paused", "gauge", "", "is_paused", "1 if the handler is paused, otherwise 0"),
    Metric(
        "handler",
        "tailrace_handler_failures_total",
        "counter",
        "records",
        "failures",
        "Failed attempts; each failed record of a batch counts",
    ),
    Metric(
        "handler",
        "tailrace_handler_retries_total",
        "counter",
        "records",
        "retries",
        "Further attempts in place; each record of a batch counts",
    ),
    Metric(
        "handler",
        "tailrace_handler_delayed_total",
        "counter",
        "records",
        "delayed",
        "Failed records published to a retry topic",
    ),
    Metric(
        "handler",
        "tailrace_handler_dead_letters_total",
        "counter",
        "records",
        "dead_letters",
        "Failed records published to the dead-letter topic",
    ),
    Metric(
        "handler", "tailrace_handler_skipped_total", "counter", "records", "skipped", "Failed records that were skipped"
    ),
    # ---- groups of an app
    Metric(
        "group",
        "tailrace_group_blocked_records",
        "gauge",
        "records",
        "blocked",
        "Records that failed for good and block their lane, because no topic takes them",
    ),
    Metric(
        "group",
        "tailrace_group_unmatched_total",
        "counter",
        "records",
        "unmatched",
        "Records skipped because no handler's `when=` accepts them",
    ),
    Metric(
        "group",
        "tailrace_group_transactions_stalled_seconds",
        "gauge",
        "seconds",
        "stalled_s",
        "Time without a committed transaction although there are records; 0 below a limit",
    ),
    # ---- assigned partitions
    Metric(
        "partition",
        "tailrace_partition_position",
        "gauge",
        "offsets",
        "position",
        "Offset of the next record to start",
    ),
    Metric(
        "partition",
        "tailrace_partition_committed",
        "gauge",
        "offsets",
        "committed",
        "Committed offset, as last acknowledged by the broker",
    ),
    Metric(
        "partition",
        "tailrace_partition_end",
        "gauge",
        "offsets",
        "end",
        "End offset of the log as of the last fetch; with `read_committed`, the last stable offset",
    ),
    Metric(
        "partition",
        "tailrace_partition_lag",
        "gauge",
        "records",
        "lag",
        "End offset minus committed offset, as in Kafka's tools; without a committed offset, minus the lowest"
        " unfinished offset",
    ),
    Metric(
        "partition",
        "tailrace_partition_work_lag",
        "gauge",
        "records",
        "work_lag",
        "Offsets up to the end that are not finished: lag without records that are finished and not committed, because"
        " of the commit interval or an earlier unfinished record",
    ),
    Metric(
        "partition",
        "tailrace_partition_lag_seconds",
        "gauge",
        "seconds",
        "lag_s",
        "Age of the oldest unfinished record by its timestamp; 0 if all records are finished, absent if that record was"
        " not fetched yet",
    ),
    Metric(
        "partition", "tailrace_partition_paused", "gauge", "", "is_paused", "1 if the partition is paused, otherwise 0"
    ),
    # ---- consumers
    Metric(
        "consumer",
        "tailrace_consumer_assigned_partitions",
        "gauge",
        "partitions",
        "assigned_partitions",
        "Assigned partitions",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_queued_records",
        "gauge",
        "records",
        "queued_records",
        "Records decoded and not delivered",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_buffered_bytes",
        "gauge",
        "bytes",
        "buffered_bytes",
        "Bytes fetched and not decoded",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_reserved_bytes",
        "gauge",
        "bytes",
        "reserved_bytes",
        "Bytes reserved for fetches in flight",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_fetched_records_total",
        "counter",
        "records",
        "fetched_records",
        "Offsets in the fetched batches",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_fetched_bytes_total",
        "counter",
        "bytes",
        "fetched_bytes",
        "Size of the fetched batches",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_fetch_seconds",
        "histogram",
        "seconds",
        "fetches",
        "Durations of fetches, including the broker's wait of up to `fetch_max_wait_ms` for records",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_commit_seconds",
        "histogram",
        "seconds",
        "commits",
        "Durations of successful commit requests",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_failed_commits_total",
        "counter",
        "commits",
        "failed_commits",
        "Commits refused or not answered",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_rebalance_seconds",
        "histogram",
        "seconds",
        "rebalances",
        "Durations of rebalances, from the start of the member's join to its assignment",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_heartbeat_age_seconds",
        "gauge",
        "seconds",
        "heartbeat_age_s",
        "Time since the last acknowledged heartbeat was sent; only in a group",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_ignored_maps_total",
        "counter",
        "commits",
        "ignored_maps",
        "Commits whose metadata was foreign, unreadable or of another log",
    ),
    Metric(
        "consumer",
        "tailrace_consumer_info",
        "info",
        "",
        "decoder checksum",
        "Implementations in use: `decoder` is compiled or python, `checksum` is hardware or software",
    ),
    # ---- the process of an app
    Metric("app", "tailrace_app_live", "gauge", "", "is_live", "1 unless only a restart can heal the app, as `/livez`"),
    Metric(
        "app", "tailrace_app_ready", "gauge", "", "is_ready", "1 from the first assignment to the stop, as `/readyz`"
    ),
    Metric(
        "app",
        "tailrace_app_loop_lag_seconds",
        "histogram",
        "seconds",
        "loop_lag",
        "Delays of timers by a busy event loop, sampled four times in `heartbeat_interval_ms`",
    ),
    Metric(
        "app",
        "tailrace_app_loop_blocked_seconds",
        "gauge",
        "seconds",
        "loop_blocked_s",
        "Time for which the event loop has been blocked; 0 up to `heartbeat_interval_ms`",
    ),
    # ---- workers of a pool
    Metric(
        "worker",
        "tailrace_worker_up",
        "gauge",
        "",
        "is_up",
        "1 if the worker process answers, otherwise 0; its other metrics are absent then",
    ),
    Metric(
        "worker", "tailrace_worker_restarts_total", "counter", "restarts", "restarts", "Restarts of the worker process"
    ),
)
