"""Values of all metrics of the table in ``observe.metrics``, read from statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tailrace.observe.metrics import LABELS, METRICS, MetricDefinition, Subject
from tailrace.observe.statistics import AppStatistics, ConsumerStatistics, Durations, PoolStatistics

__all__ = ["Sample", "Statistics", "samples"]

Statistics: TypeAlias = AppStatistics | ConsumerStatistics | PoolStatistics

_OF_SUBJECT = {subject: tuple(one for one in METRICS if one.subject == subject) for subject in LABELS}


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
    """Return the samples of all statistics; each pair of metric and labels occurs once.

    Samples with the same labels, such as those of two consumers of one group in one process, are added up; ages and
    offsets are not, and the greatest one counts.
    """
    merged: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for statistics in found:
        for one in _samples(statistics):
            key = one.metric.name, tuple(one.labels.items())
            before = merged.get(key)
            merged[key] = one if before is None else one._replace(value=_merged(one.metric, before.value, one.value))
    return list(merged.values())


def _merged(metric: MetricDefinition, one: float | Durations, other: float | Durations) -> float | Durations:
    if isinstance(one, Durations) and isinstance(other, Durations):
        return one + other
    assert not isinstance(one, Durations)
    assert not isinstance(other, Durations)
    if metric.kind == "gauge" and not metric.unit:
        return min(one, other)  # yes or no: of several apps, each has to be ready
    if metric.kind == "info" or metric.subject == "partition" or (metric.kind == "gauge" and metric.unit == "seconds"):
        return max(one, other)
    return one + other


def _samples(found: Statistics) -> Iterator[Sample]:
    match found:
        case PoolStatistics():
            for worker, statistics in found.workers.items():
                yield from _of("worker", _WorkerState(worker, statistics is not None, found.restarts.get(worker, 0)))
                for one in () if statistics is None else _samples(statistics):
                    yield one._replace(labels={"worker": str(worker), **one.labels})
        case AppStatistics():
            yield from _of("app", found)
            for handler in found.handlers:
                yield from _of("handler", handler)
            for group in found.groups:
                yield from _of("group", group)
            for consumer in found.consumers:
                yield from _samples(consumer)
        case ConsumerStatistics():
            yield from _of("consumer", found)
            for partition in found.partitions:
                yield from _of("partition", partition, group=found.group_id or "")


def _of(subject: Subject, found: object, **known: str) -> Iterator[Sample]:
    labels = {label: known.get(label) or _text(getattr(found, field, None)) for label, field in LABELS[subject].items()}
    for metric in _OF_SUBJECT[subject]:
        if metric.kind == "info":
            values = {field: str(getattr(found, field)) for field in metric.field.split()}
            yield Sample(metric, {**labels, **values}, 1.0)
        elif (value := getattr(found, metric.field)) is not None:
            yield Sample(metric, labels, value if isinstance(value, Durations) else float(value))


def _text(value: object) -> str:
    return "" if value is None else str(value)
