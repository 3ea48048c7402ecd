"""Values of the metrics in ``observe.metrics``, read from statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tailrace.observe.metrics import LABELS, METRICS, MetricDefinition, Subject
from tailrace.observe.statistics import AppStatistics, ConsumerStatistics, Durations, PoolStatistics

__all__ = ["Sample", "Statistics", "samples"]

Statistics: TypeAlias = AppStatistics | ConsumerStatistics | PoolStatistics

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
            yield from _samples_of("app", found)
            for handler in found.handlers:
                yield from _samples_of("handler", handler)
            for group in found.groups:
                yield from _samples_of("group", group)
            for consumer in found.consumers:
                yield from _samples(consumer)
        case ConsumerStatistics():
            yield from _samples_of("consumer", found)
            for partition in found.partitions:
                yield from _samples_of("partition", partition, group=found.group_id or "")


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
