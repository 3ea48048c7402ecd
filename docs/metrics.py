"""Write docs/metrics.md from the table of metrics: python docs/metrics.py."""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.observe.metrics import LABELS, METRICS, MetricDefinition, Subject
from tailrace.observe.statistics import DURATION_BOUNDS_S

PAGE = Path(__file__).parent / "metrics.md"

OPENING = """\
# Metrics

All metrics of apps, handlers and consumers, as Prometheus sees them. To serve them, see
[monitor an app](howto/watch-an-app.md#prometheus); in a program, `app.statistics()` and `consumer.statistics()` return
the same numbers, under the names in the column *field*.

Metrics are read when they are scraped and cost nothing otherwise: a handler is measured once per slice of records, not
once per record. Counters begin at 0 with each start of the app. The number of label values is bounded by the program
and its assignment; no label contains a key, an offset or an error text. With `WorkerPool` and `tailrace run --workers`,
each metric has the label `worker`, too.
"""

TITLES: dict[Subject, tuple[str, str]] = {
    "handler": ("Handlers", "`HandlerStatistics`, in `app.statistics().handlers`."),
    "group": ("Groups of an app", "`GroupStatistics`, in `app.statistics().groups`."),
    "partition": (
        "Assigned partitions",
        "`PartitionStatistics`, in `partitions` of a consumer's statistics. An unknown value is absent.",
    ),
    "consumer": ("Consumers", "`ConsumerStatistics`: `consumer.statistics()`, and `app.statistics().consumers`."),
    "app": ("App and event loop", "`AppStatistics`: `app.statistics()`."),
    "worker": ("Worker processes", "Only with `WorkerPool` and `tailrace run --workers`."),
}


def row(metric: MetricDefinition) -> str:
    """Return the row of a metric."""
    fields = ", ".join(f"`{field}`" for field in metric.field.split())
    return f"| `{metric.name}` | {metric.kind} | {metric.unit or '-'} | {fields} | {metric.meaning} |"


def section(subject: Subject) -> str:
    """Return the section of a subject."""
    title, text = TITLES[subject]
    infos = [f for one in METRICS if one.subject == subject and one.kind == "info" for f in one.field.split()]
    labels = ", ".join(f"`{label}`" for label in LABELS[subject]) or "none"
    more = f"; of infos also {', '.join(f'`{one}`' for one in infos)}" if infos else ""
    rows = [row(one) for one in METRICS if one.subject == subject]
    head = ["| metric | kind | unit | field | meaning |", "|---|---|---|---|---|"]
    return "\n".join([f"## {title}\n", f"{text} Labels: {labels}{more}.\n", *head, *rows, ""])


def written() -> str:
    """Return the page that matches the table."""
    bounds = ", ".join(f"{bound:g}" for bound in DURATION_BOUNDS_S)
    closing = f"""\
## Histograms

Buckets of all histograms, in seconds: {bounds}. As usual, a histogram has the series `_bucket`, `_sum` and `_count`.
The number of calls of a handler is `tailrace_handler_duration_seconds_count`.
"""
    return "\n".join([OPENING, *map(section, LABELS), closing])


if __name__ == "__main__":
    before = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(written())
    sys.stderr.write(f"{PAGE}: {'unchanged' if PAGE.read_text() == before else 'updated'}\n")
