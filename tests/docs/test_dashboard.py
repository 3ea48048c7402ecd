"""The Grafana dashboard and the alert rules use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tailrace.observe import events
from tailrace.observe.metrics import LABELS, METRICS
from tests.support.docs_modules import docs_module

FOLDER = Path(__file__).parents[2] / "docs" / "grafana"
ALERTS = (FOLDER / "alerts.yml").read_text()
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
# Labels that Prometheus adds, and the boundary of a bucket.
GENERAL_LABELS = {"instance", "le", "worker"}


@pytest.fixture(scope="module")
def generator():
    return docs_module("dashboard")


def dashboard_expressions():
    dashboard = json.loads((FOLDER / "tailrace.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [(target["expr"], target["legendFormat"]) for target in targets]


def alert_expressions():
    return [
        (expression, rule) for rule in ALERTS.split("- alert: ")[1:] for expression in re.findall(r"expr: (.*)", rule)
    ]


def metrics_of(expression):
    """Return the metrics of an expression, without the suffixes of histograms."""
    kinds = {one.name: one for one in METRICS}
    found = []
    for name in re.findall(r"tailrace_\w+", expression):
        histogram = next((name.removesuffix(end) for end in HISTOGRAM_SUFFIXES if name.endswith(end)), name)
        is_series = histogram in kinds and kinds[histogram].kind == "histogram" and histogram != name
        found.append(kinds.get(histogram if is_series else name))
    return found


EXPRESSIONS = [*dashboard_expressions(), *alert_expressions()]
each_expression = pytest.mark.parametrize(
    ("expression", "text"), EXPRESSIONS, ids=[text.partition("\n")[0] for _, text in EXPRESSIONS]
)


def test_the_dashboard_is_the_generated_one(generator):
    """The dashboard is up to date; `python docs/dashboard.py` writes it."""
    assert (FOLDER / "tailrace.json").read_text() == generator.written()


@each_expression
def test_each_expression_uses_metrics_and_labels_that_exist(expression, text):
    """Each metric of an expression exists, and has the labels that the expression and its text use."""
    asked = metrics_of(expression)
    used = {name.strip() for group in re.findall(r"by \((.*?)\)", expression) for name in group.split(",")}
    used |= set(re.findall(r"(\w+)=~", expression)) | set(re.findall(r"{{ ?(?:\$labels\.)?(\w+) ?}}", text))

    assert asked
    assert None not in asked
    assert used <= GENERAL_LABELS | {label for one in asked for label in LABELS[one.subject]}


@each_expression
def test_panels_show_rates_of_counters_and_series_of_histograms(expression, text):
    """Panels show rates of counters, and rates of the buckets, sums or counts of histograms."""
    for one in metrics_of(expression):
        if one.kind == "counter":
            assert re.search(rf"(rate|increase)\({one.name}", expression)
        if one.kind == "histogram":
            assert re.search(rf"(rate|increase)\({one.name}_(bucket|sum|count)", expression)


def test_panels_do_not_overlap():
    """No two panels overlap in Grafana's 24 columns."""
    panels = json.loads((FOLDER / "tailrace.json").read_text())["panels"]
    places = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )

    assert max(places.values()) == 1
    assert max(x for x, _ in places) < 24


def test_each_alert_says_how_bad_it_is_and_what_to_do():
    """Each alert has a severity, a summary and a description, and the events that it names exist."""
    names = {re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower() for name in events.__all__}
    for rule in ALERTS.split("- alert: ")[1:]:
        assert re.search(r"severity: (critical|warning)", rule)
        assert re.search(r'summary: ".+"', rule)
        assert re.search(r'description: ".{30,}"', rule)
        for named in re.findall(r"in the event ([a-z ]+)[.\"]", rule):
            assert named in names
