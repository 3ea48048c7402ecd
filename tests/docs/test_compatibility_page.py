"""docs/compatibility.md matches the results in docs/compatibility.json."""

from __future__ import annotations

import json

import pytest

from tests.support.compatibility.brokers import RELEASES, expected_refusals
from tests.support.compatibility.capabilities import CAPABILITIES, expected_results
from tests.support.compatibility.engines import ENGINES
from tests.support.compatibility.services import SERVICES
from tests.support.docs_modules import docs_module


@pytest.fixture(scope="module")
def generator():
    return docs_module("compatibility")


def test_the_page_matches_the_results(generator):
    """The page is up to date; `python docs/compatibility.py` writes it."""
    assert generator.PAGE.read_text() == generator.written()


def test_each_broker_was_run_and_has_what_is_expected_of_it(generator):
    """The results contain each release, program and service, and only expected capabilities are missing."""
    found = json.loads(generator.RESULTS.read_text())

    expected = {name: expected_results(expected_refusals(name)) for name in RELEASES}
    expected |= {name: expected_results(engine.refused, engine.fails) for name, engine in ENGINES.items()}
    expected |= {name: expected_results(service.refused) for name, service in SERVICES.items()}
    results = {
        name: {capability: one["result"] for capability, one in result["capabilities"].items()}
        for name, result in found.items()
    }
    assert results == expected
    assert generator.CAPABILITIES.keys() == CAPABILITIES.keys()


def test_errors_are_footnotes_and_missing_results_are_named(generator):
    """Brokers with the same error share a footnote, and a capability that was not run is "not tried"."""
    lacking = {"consume": {"result": "yes"}, "KIP-848": {"result": "no", "error": "not supported"}}
    results = {
        "2.10": {"version": "2.10.0", "date": "2026-01-02", "capabilities": lacking},
        "2.9": {"version": "2.9.0", "date": "2026-01-01", "capabilities": lacking},
        "4.0": {"version": "4.0.0", "date": "2026-01-03", "capabilities": {"consume": {"result": "yes"}}},
    }

    rows = [line for line in generator.written(results).splitlines() if line.startswith(("| Kafka", "1.", "2."))]
    assert rows == [
        "| Kafka 2.9 | 2.9.0 | 2026-01-01 | run here | yes | no (1) |",
        "| Kafka 2.10 | 2.10.0 | 2026-01-02 | run here | yes | no (1) |",
        "| Kafka 4.0 | 4.0.0 | 2026-01-03 | run here | yes | not tried |",
        "1. not supported",
    ]
