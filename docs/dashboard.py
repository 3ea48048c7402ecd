"""Write the Grafana dashboard docs/grafana/tailrace.json: python docs/dashboard.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent / "grafana" / "tailrace.json"

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 24, 8
"""Width of Grafana's grid, and height of each panel in rows of it."""


class Panel(NamedTuple):
    """Panel with the queries of its lines.

    Attributes:
        title: heading.
        text: what to look for, shown when the pointer is over the heading.
        queries: legend and PromQL expression of each line.
        unit: Grafana's name of the unit.
        kind: "timeseries", or "stat" for the current value alone.
    """

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"


def rate(metric: str, by: str) -> str:
    """Return the sum of a counter's rates per second, for each value of the labels ``by``."""
    return f'sum by ({by}) (rate({metric}{{group=~"$group"}}[$__rate_interval]))'


def quantile(share: float, metric: str, by: str, selector: str = '{group=~"$group"}') -> str:
    """Return a quantile of a histogram, for each value of the labels ``by``."""
    labels = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval])))"


GROUP = '{group=~"$group"}'
HANDLER = "{{group}} {{handler}}"
"""Legend of a handler: apps of several groups may have handlers of the same name."""
PROCESS = "{{group}} {{instance}} {{worker}}"
"""Legend of a group's consumer in one process; all processes of an app have the same client id."""

ROWS: dict[str, list[Panel]] = {
    "Is it well?": [
        Panel(
            "Live and ready processes",
            "Of all groups. A process that is not live needs a restart; one that is not ready has no assignment yet.",
            {"live": "sum(tailrace_app_live)", "ready": "sum(tailrace_app_ready)"},
            kind="stat",
        ),
        Panel(
            "Lag in seconds",
            "Age of the oldest unfinished record of each topic. It grows by a second per second while nothing moves.",
            {"{{group}} {{topic}}": f"max by (group, topic) (tailrace_partition_lag_seconds{GROUP})"},
            unit="s",
        ),
        Panel(
            "Records that block a lane",
            "Records that failed for good and that no topic takes. Their partitions or keys wait.",
            {"{{group}}": f"sum by (group) (tailrace_group_blocked_records{GROUP})"},
            kind="stat",
        ),
    ],
    "How far behind?": [
        Panel(
            "Lag and work lag",
            "Lag as Kafka's tools show it, and the part of it that is not finished.",
            {
                "lag {{group}} {{topic}}": f"sum by (group, topic) (tailrace_partition_lag{GROUP})",
                "work {{group}} {{topic}}": f"sum by (group, topic) (tailrace_partition_work_lag{GROUP})",
            },
        ),
        Panel(
            "Partitions of each consumer",
            "Steps are rebalances. An owner without partitions has nothing to do.",
            {PROCESS: f"tailrace_consumer_assigned_partitions{GROUP}"},
        ),
        Panel(
            "Slowest partitions, in records",
            "The ten partitions with the most unfinished records.",
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
            "Median and 99th percentile, interpolated in buckets, and the exact mean. None while there are no calls.",
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
            "In flight at the handler's concurrency, with many waiting, means that the handlers are the bottleneck.",
            {
                f"in flight {HANDLER}": f"sum by (group, handler) (tailrace_handler_in_flight{GROUP})",
                f"waiting {HANDLER}": f"sum by (group, handler) (tailrace_handler_waiting{GROUP})",
            },
        ),
        Panel(
            "Failures per second",
            "Failed attempts, and what became of the records.",
            {
                f"failures {HANDLER}": rate("tailrace_handler_failures_total", "group, handler"),
                f"retries {HANDLER}": rate("tailrace_handler_retries_total", "group, handler"),
                f"to retry topics {HANDLER}": rate("tailrace_handler_delayed_total", "group, handler"),
                f"dead letters {HANDLER}": rate("tailrace_handler_dead_letters_total", "group, handler"),
                f"skipped {HANDLER}": rate("tailrace_handler_skipped_total", "group, handler"),
            },
        ),
    ],
    "Broker and event loop": [
        Panel(
            "Rebalances",
            "Number of rebalances, and seconds spent in them, of all members together.",
            {
                "count {{group}}": "sum by (group) "
                f"(increase(tailrace_consumer_rebalance_seconds_count{GROUP}[$__rate_interval]))",
                "seconds {{group}}": "sum by (group) "
                f"(increase(tailrace_consumer_rebalance_seconds_sum{GROUP}[$__rate_interval]))",
            },
        ),
        Panel(
            "Fetches and commits, 99th percentile",
            "A fetch waits up to fetch_max_wait_ms if there are no records.",
            {
                "fetch {{group}}": quantile(0.99, "tailrace_consumer_fetch_seconds", "group"),
                "commit {{group}}": quantile(0.99, "tailrace_consumer_commit_seconds", "group"),
            },
            unit="s",
        ),
        Panel(
            "Buffered bytes",
            "Bytes fetched and not decoded, up to max_buffered_bytes.",
            {PROCESS: f"tailrace_consumer_buffered_bytes{GROUP}"},
            unit="bytes",
        ),
        Panel(
            "Event loop delay, 99th percentile",
            "Above 0.1 s, a handler blocks the loop: make it a plain def, which runs in a thread.",
            {
                "{{instance}} {{worker}}": quantile(
                    0.99, "tailrace_app_loop_lag_seconds", "instance, worker", selector=""
                )
            },
            unit="s",
        ),
    ],
}


def panel(one: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
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
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def panels() -> list[dict[str, Any]]:
    """Return the panels, each row of them below its heading."""
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
