"""docs/metrics.md matches the table of metrics, and the table matches the statistics."""

from __future__ import annotations

import dataclasses
import re
import typing

import pytest

from tailrace.observe import statistics
from tailrace.observe.metrics import LABELS, METRICS
from tests.support.docs_modules import docs_module

CLASSES = {
    "handler": statistics.HandlerStatistics,
    "group": statistics.GroupStatistics,
    "partition": statistics.PartitionStatistics,
    "consumer": statistics.ConsumerStatistics,
    "producer": statistics.ProducerStatistics,
    "app": statistics.AppStatistics,
}


@pytest.fixture(scope="module")
def generator():
    return docs_module("metrics")


def test_the_page_matches_the_table(generator):
    """The page is up to date; `python docs/metrics.py` writes it."""
    page = generator.PAGE.read_text()

    assert page == generator.written()
    assert re.findall(r"^\| `(tailrace_\w+)` \|", page, re.MULTILINE) == [one.name for one in METRICS]


def test_names_follow_the_conventions_of_prometheus():
    """Names of counters end in _total, of durations in _seconds, and of sizes in _bytes, and all are unique."""
    names = [one.name for one in METRICS]

    assert len(set(names)) == len(names)
    for one in METRICS:
        name = one.name.removesuffix("_total")
        assert re.fullmatch(rf"tailrace_{'app' if one.subject == 'app' else one.subject}_[a-z_]+", one.name)
        assert (name != one.name) == (one.kind == "counter")
        assert name.endswith("_seconds") == (one.unit == "seconds")
        assert name.endswith("_bytes") == (one.unit == "bytes")
        assert name.endswith("_info") == (one.kind == "info")


@pytest.mark.parametrize("subject", CLASSES)
def test_every_number_of_the_statistics_is_a_metric(subject):
    """Each field of the statistics has a metric, and each metric has a field."""
    kind = CLASSES[subject]
    fields = {one.name: typing.get_type_hints(kind)[one.name] for one in dataclasses.fields(kind)}
    labels = set(LABELS[subject].values()) - {"group_id"} | {"group_id"}
    nested = {"partitions", "handlers", "groups", "consumers", "producers"}
    metrics = {name for one in METRICS if one.subject == subject for name in one.field.split()}

    assert fields.keys() - labels - nested <= metrics
    assert all(hasattr(kind, name) for name in metrics)
    assert labels <= fields.keys() | {"group_id"}


def test_no_label_is_unbounded():
    """Labels are groups, handlers, topics, partitions, clients and workers, and never values of a record."""
    assert {label for labels in LABELS.values() for label in labels} == {
        "client_id",
        "group",
        "handler",
        "partition",
        "topic",
        "worker",
    }
