"""Write the Grafana dashboard docs/grafana/tailrace.json: python docs/dashboard.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent / "grafana" / "tailrace.json"

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 24, 8
"""Columns of Grafana's grid, and height of each panel in rows of this grid."""


class Panel(NamedTuple):
    """Panel of the dashboard.

    Attributes:
        title: heading.
        text: explanation that Grafana shows when the pointer is over the heading.
        queries: PromQL expression of each line, by its legend.
        unit: Grafana's name of the unit.
        kind: "timeseries", or "stat" to show only the current value.
    """

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"


def rate(metric: str, by: str) -> str:
    """Return the PromQL expression for the rate of a counter per second, summed for each value of the labels ``by``."""
    return f'sum by ({by}) (rate({metric}{{group=~"$group"}}[$__rate_interval]))'


def producer_rate(metric: str) -> str:
    """Return the PromQL expression for the rate of a producers' counter per second, by client id."""
    return f"sum by (client_id) (rate({metric}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str, selector: str = '{group=~"$group"}') -> str:
    """Return the PromQL expression for a quantile of a histogram, for each value of the labels ``by``."""
    labels = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval])))"


GROUP = '{group=~"$group"}'
HANDLER = "{{group}} {{handler}}"
"""Legend of a handler, with its group, because handlers of several groups may have the same name."""
PROCESS = "{{group}} {{instance}} {{worker}}"
"""Legend of the consumer of a group in one process. The client id is the same in all processes of an app."""

PRODUCER = "{{client_id}}"
"""Legend of the producers with a client id, which have no group."""

ROWS: dict[str, list[Panel]] = {
    "Health": [
        Panel(
            "Live and ready processes",
            "Processes of all groups. A process that is not live needs a restart; a process that is not ready has no"
            " assignment yet.",
            {"live": "sum(tailrace_app_live)", "ready": "sum(tailrace_app_ready)"},
            kind="stat",
        ),
        Panel(
            "Lag in seconds",
            "Age of the oldest unfinished record of each topic. It grows as fast as time while this record is not"
            " finished.",
            {"{{group}} {{topic}}": f"max by (group, topic) (tailrace_partition_lag_seconds{GROUP})"},
            unit="s",
        ),
        Panel(
            "Records that block a lane",
            "Records that failed for good and could not be published to a dead-letter or retry topic. The following"
            " records of their partition or key wait.",
            {"{{group}}": f"sum by (group) (tailrace_group_blocked_records{GROUP})"},
            kind="stat",
        ),
    ],
    "Lag": [
        Panel(
            "Lag and work lag",
            "Lag as Kafka's tools show it, and work lag, the unfinished part of it.",
            {
                "lag {{group}} {{topic}}": f"sum by (group, topic) (tailrace_partition_lag{GROUP})",
                "work {{group}} {{topic}}": f"sum by (group, topic) (tailrace_partition_work_lag{GROUP})",
            },
        ),
        Panel(
            "Partitions of each consumer",
            "Assigned partitions, which change in rebalances. A consumer without partitions has nothing to do.",
            {PROCESS: f"tailrace_consumer_assigned_partitions{GROUP}"},
        ),
        Panel(
            "Partitions with the most unfinished records",
            "Work lag of the ten partitions where it is greatest.",
            {
                "{{group}} {{topic}}[{{partition}}]": "topk(10, max by (group, topic, partition) "
                f"(tailrace_partition_work_lag{GROUP}))"
            },
        ),
    ],
    "Handlers": [
        Panel(
            "Records per second",
            "Records handled successfully.",
            {HANDLER: rate("tailrace_handler_records_total", "group, handler")},
        ),
        Panel(
            "Duration of calls",
            "Median and 99th percentile, interpolated between bucket bounds, and the exact mean. There are no values"
            " while there are no calls.",
            {
                f"p50 {HANDLER}": quantile(0.5, "tailrace_handler_duration_seconds", "group, handler"),
                f"p99 {HANDLER}": quantile(0.99, "tailrace_handler_duration_seconds", "group, handler"),
                f"mean {HANDLER}": rate("tailrace_handler_duration_seconds_sum", "group, handler")
                + " / "
                + rate("tailrace_handler_duration_seconds_count", "group, handler"),
            },
            unit="s",
        ),
        Panel(
            "In flight and waiting",
            "If the number in flight equals the handler's concurrency and many records wait, the handler is the"
            " bottleneck.",
            {
                f"in flight {HANDLER}": f"sum by (group, handler) (tailrace_handler_in_flight{GROUP})",
                f"waiting {HANDLER}": f"sum by (group, handler) (tailrace_handler_waiting{GROUP})",
            },
        ),
        Panel(
            "Failures per second",
            "Failed attempts, and the actions taken on the failed records.",
            {
                f"failures {HANDLER}": rate("tailrace_handler_failures_total", "group, handler"),
                f"retries {HANDLER}": rate("tailrace_handler_retries_total", "group, handler"),
                f"to retry topics {HANDLER}": rate("tailrace_handler_delayed_total", "group, handler"),
                f"dead letters {HANDLER}": rate("tailrace_handler_dead_letters_total", "group, handler"),
                f"skipped {HANDLER}": rate("tailrace_handler_skipped_total", "group, handler"),
            },
        ),
    ],
    "Producers": [
        Panel(
            "Published records per second",
            "Acknowledged records, and records that were refused or not acknowledged in time.",
            {
                f"published {PRODUCER}": producer_rate("tailrace_producer_records_total"),
                f"failed {PRODUCER}": producer_rate("tailrace_producer_failures_total"),
                f"batches sent again {PRODUCER}": producer_rate("tailrace_producer_retries_total"),
            },
        ),
        Panel(
            "Published bytes per second",
            "Bytes of the acknowledged batches, before and after compression.",
            {
                f"sent {PRODUCER}": producer_rate("tailrace_producer_bytes_total"),
                f"before compression {PRODUCER}": producer_rate("tailrace_producer_uncompressed_bytes_total"),
            },
            unit="Bps",
        ),
        Panel(
            "Queue and request, 99th percentile",
            "Time of a batch until it is sent, and of its request until the answer. A long queue and short requests:"
            " the producer waits for linger_ms, or has no leader.",
            {
                f"queue {PRODUCER}": quantile(
                    0.99, "tailrace_producer_queue_duration_seconds", "client_id", selector=""
                ),
                f"request {PRODUCER}": quantile(
                    0.99, "tailrace_producer_request_duration_seconds", "client_id", selector=""
                ),
            },
            unit="s",
        ),
        Panel(
            "Used share of buffer_memory",
            "Unacknowledged records. At 1, calls wait for memory, for up to max_block_ms.",
            {
                PRODUCER: "sum by (client_id) (tailrace_producer_buffered_bytes)"
                " / sum by (client_id) (tailrace_producer_buffer_memory_bytes)"
            },
            unit="percentunit",
        ),
    ],
    "Broker and event loop": [
        Panel(
            "Rebalances",
            "Number of rebalances and their duration in seconds, summed over all members.",
            {
                "count {{group}}": "sum by (group) "
                f"(increase(tailrace_consumer_rebalance_seconds_count{GROUP}[$__rate_interval]))",
                "seconds {{group}}": "sum by (group) "
                f"(increase(tailrace_consumer_rebalance_seconds_sum{GROUP}[$__rate_interval]))",
            },
        ),
        Panel(
            "Fetches and commits, 99th percentile",
            "If there are no records, a fetch takes up to fetch_max_wait_ms.",
            {
                "fetch {{group}}": quantile(0.99, "tailrace_consumer_fetch_seconds", "group"),
                "commit {{group}}": quantile(0.99, "tailrace_consumer_commit_seconds", "group"),
            },
            unit="s",
        ),
        Panel(
            "Buffered bytes",
            "Bytes that are fetched and not decoded yet, at most max_buffered_bytes.",
            {PROCESS: f"tailrace_consumer_buffered_bytes{GROUP}"},
            unit="bytes",
        ),
        Panel(
            "Event loop delay, 99th percentile",
            "A handler that causes delays above 0.1 s should be a plain def, which runs in a thread.",
            {
                "{{instance}} {{worker}}": quantile(
                    0.99, "tailrace_app_loop_lag_seconds", "instance, worker", selector=""
                )
            },
            unit="s",
        ),
    ],
}


def panel(one: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    """Return a panel in Grafana's format."""
    targets = [
        {"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend, "datasource": DATASOURCE}
        for n, (legend, expression) in enumerate(one.queries.items())
    ]
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": one.text,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def panels() -> list[dict[str, Any]]:
    """Return the panels in Grafana's format, with a heading before each row."""
    found: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        found.append(
            {"id": len(found) + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        )
        width = COLUMNS // len(row)
        for n, one in enumerate(row):
            found.append(panel(one, len(found) + 1, {"x": n * width, "y": top + 1, "w": width, "h": HEIGHT}))
        top += 1 + HEIGHT
    return found


def written() -> str:
    """Return the dashboard as JSON."""
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    group = {
        "name": "group",
        "label": "Group",
        "type": "query",
        "datasource": DATASOURCE,
        "query": "label_values(tailrace_consumer_assigned_partitions, group)",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
    }
    dashboard = {
        "title": "tailrace",
        "uid": "tailrace",
        "tags": ["kafka", "tailrace"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [datasource, group]},
        "panels": panels(),
    }
    return json.dumps(dashboard, indent=2) + "\n"


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(written())
    sys.stderr.write(f"{PAGE}: {'unchanged' if PAGE.read_text() == before else 'updated'}\n")
