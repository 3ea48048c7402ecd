"""Write docs/metrics.md from the table of metrics: python docs/metrics.py."""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.observe.metrics import LABELS, METRICS, MetricDefinition, Subject
from tailrace.observe.statistics import DURATION_BOUNDS_S

PAGE = Path(__file__).parent / "metrics.md"

OPENING = """\
# Metrics

All metrics of apps, handlers, consumers and producers, with their names in Prometheus. To serve them, see
[monitor an app](howto/watch-an-app.md#prometheus). In a program, `app.statistics()`, `consumer.statistics()` and
`producer.statistics()` return the same numbers in objects with the attributes of the column *field*.

Values are read when Prometheus scrapes them. Counters begin at 0 when the app, consumer or producer is started. The
number of label values is limited by the program and its assigned partitions: no label contains a key, an offset or an
error text. With `WorkerPool` and `tailrace run --workers`, each metric also has the label `worker`.
"""

TITLES: dict[Subject, tuple[str, str]] = {
    "handler": ("Handlers", "Fields of `HandlerStatistics`, the items of `app.statistics().handlers`."),
    "group": ("Groups of an app", "Fields of `GroupStatistics`, the items of `app.statistics().groups`."),
    "partition": (
        "Assigned partitions",
        "Fields of `PartitionStatistics`, in `partitions` of a consumer's statistics. Unknown values are absent.",
    ),
    "consumer": (
        "Consumers",
        "Fields of `ConsumerStatistics`, from `consumer.statistics()` or `app.statistics().consumers`.",
    ),
    "producer": (
        "Producers",
        "Fields of `ProducerStatistics`, from `producer.statistics()` or `app.statistics().producers`.",
    ),
    "app": ("App and event loop", "Fields of `AppStatistics`, the result of `app.statistics()`."),
    "worker": ("Worker processes", "These metrics exist only with `WorkerPool` and `tailrace run --workers`."),
}


def row(metric: MetricDefinition) -> str:
    """Return the table row of a metric."""
    fields = ", ".join(f"`{field}`" for field in metric.field.split())
    return f"| `{metric.name}` | {metric.kind} | {metric.unit or '-'} | {fields} | {metric.meaning} |"


def section(subject: Subject) -> str:
    """Return the section about the metrics of a subject."""
    title, text = TITLES[subject]
    infos = [one for one in METRICS if one.subject == subject and one.kind == "info"]
    labels = ", ".join(f"`{label}`" for label in LABELS[subject]) or "none"
    more = "".join(f"; `{one.name}` also has {', '.join(f'`{field}`' for field in one.field.split())}" for one in infos)
    rows = [row(one) for one in METRICS if one.subject == subject]
    head = ["| metric | kind | unit | field | meaning |", "|---|---|---|---|---|"]
    return "\n".join([f"## {title}\n", f"{text} Labels: {labels}{more}.\n", *head, *rows, ""])


def written() -> str:
    """Return the page that matches the table."""
    bounds = ", ".join(f"{bound:g}" for bound in DURATION_BOUNDS_S)
    closing = f"""\
## Histograms

Upper bounds of the buckets of all histograms, in seconds: {bounds}. Each histogram has the series `_bucket`, `_sum` and
`_count`. The number of calls of a handler is `tailrace_handler_duration_seconds_count`.
"""
    return "\n".join([OPENING, *map(section, LABELS), closing])


if __name__ == "__main__":
    before = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(written())
    sys.stderr.write(f"{PAGE}: {'unchanged' if PAGE.read_text() == before else 'updated'}\n")
