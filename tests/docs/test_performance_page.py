"""docs/performance.md and its charts match the results in docs/performance."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from tests.support.docs_modules import docs_module

MACHINE = {
    "date": "2026-01-01",
    "cpus": 2,
    "model": "a",
    "system": "b",
    "python": "3.13",
    "kafka": "4.3.0",
    "log_folder": "/tmp",
}


@pytest.fixture(scope="module")
def generator():
    return docs_module("performance")


def consumer(name: str, per_s: float, cpu_us: float, rss: float) -> dict:
    row = {"client": name, "version": "1.0", "records_per_s": per_s, "lowest": 0.9 * per_s, "highest": 1.2 * per_s}
    return row | {"cpu_us_per_record": cpu_us, "max_rss_bytes": rss}


PUBLISHED = {
    "benchmark": "publish",
    "settings": {"partitions": 4, "rounds": 3, "seconds": 1},
    "rows": [
        consumer(name, per_s, cpu_us, 50e6) | {"way": "not awaited", "size": 100, "codec": "lz4"}
        for name, per_s, cpu_us in (
            ("tailrace", 300e3, 3.0),
            ("aiokafka", 150e3, 6.0),
            ("confluent-kafka Producer", 450e3, 1.5),
        )
    ],
    "promises": [
        {"way": "not awaited", "size": 100, "codec": "lz4", "at_least": 1.5, "measured": 1.25, "holds": False}
    ],
}


@pytest.fixture
def written(generator, tmp_path):
    """Write a page from rows of consumers and latencies."""
    settings = {
        "payload": 100,
        "codec": "zstd",
        "headers": 0,
        "partitions": 4,
        "brokers": 1,
        "rounds": 5,
        "seconds": 10,
    }
    rows = [
        consumer("tailrace getmany(5000)", 2e6, 0.5, 60e6),
        consumer("java ConsumerPerformance", 3e6, 2.0, 400e6),
        consumer("aiokafka getmany(5000)", 0.5e6, 2.0, 50e6),
        consumer("tailrace <odd>", 1e6, 1.0, 1e6),
    ]
    result = {"benchmark": "consume", "settings": settings, "rows": rows, "machine": MACHINE}
    (tmp_path / "consume-codec-zstd.json").write_text(json.dumps(result))
    figures = {
        "p50_ms": {"median": 1.0, "lowest": 1, "highest": 2},
        "p99_ms": {"median": 30.0, "lowest": 9, "highest": 99},
    }
    row = {"version": "1", "rate": 500, "is_busy": True, **figures}
    settings = {"rounds": 1, "seconds": 2, "payload": 100, "busy_ms": 2.0, "free_ms": 2.0}
    rows = [row | {"client": "tailrace async for"}]
    result = {"benchmark": "latency", "settings": settings, "rows": rows, "machine": MACHINE}
    (tmp_path / "latency.json").write_text(json.dumps(result))
    (tmp_path / "publish.json").write_text(json.dumps({"machine": MACHINE, **PUBLISHED}))
    return generator.written(tmp_path)


def test_the_page_matches_the_results(generator):
    """The page and its charts are up to date; `python docs/performance.py` writes them."""
    page, charts = generator.written()

    assert generator.PAGE.read_text() == page
    assert {path.stem: path.read_text() for path in generator.RESULTS.glob("*.svg")} == charts


def test_better_figures_of_other_clients_are_listed(written):
    """The page lists each client with a higher rate or a lower cost than tailrace has in the same way of reading."""
    page, _ = written
    section = page.partition("## Where other clients are better")[2].partition("## Consumers")[0]

    assert [line for line in section.splitlines() if line.startswith("| consume")] == [
        "| consume, 100 B, zstd, 4 partitions | records/s | java ConsumerPerformance | 3.00 M | 2.00 M | 1.5 |",
        "| consume, 100 B, zstd, 4 partitions | memory | aiokafka getmany(5000) | 50 MB | 60 MB | 1.2 |",
    ]


def test_better_producers_are_listed(written):
    """The page begins with each producer that has a higher rate or a lower cost than tailrace in the same case."""
    page, _ = written
    section = page.partition("## Where other clients are better")[2].partition("## Consumers")[0]

    assert [line for line in section.splitlines() if line.startswith("| publish")] == [
        "| publish not awaited, 100 B, lz4 | CPU per record | confluent-kafka Producer | 1.50 µs | 3.00 µs | 2.0 |",
        "| publish not awaited, 100 B, lz4 | records/s | confluent-kafka Producer | 450 k | 300 k | 1.5 |",
    ]


def test_the_table_of_producers_has_rate_cost_and_ratio(written):
    """A row has rate and CPU time of each producer, and the ratio to aiokafka beside the required one."""
    page, _ = written
    section = page.partition("## Producers")[2]

    assert "Missed: 1 of 1 ratios are below what the benchmark requires." in section
    assert "### 100 B, lz4" in section
    assert "| not awaited | 300 k, 3.00 µs | 150 k, 6.00 µs | 450 k, 1.50 µs | 1.25 | 1.5 |" in section.splitlines()


def test_tables_show_median_spread_cost_and_ratio(written):
    """A table has a row for each client, and the settings of the run below it."""
    page, _ = written

    assert "| java ConsumerPerformance | 1.0 | 3.00 M | 30% | 2.00 µs | 400 MB | - |" in page
    assert "5 rounds of 10 s" in page
    assert "| **tailrace async for** | 1 | 1.00 ms | 100% | 30.0 ms | 300% |" in page


def test_charts_are_drawn_in_both_themes(written):
    """Charts are well-formed, have a title, and follow the color scheme of the reader."""
    _, charts = written

    assert set(charts) == {"consume-codec-zstd", "latency-500-busy"}
    for chart in charts.values():
        assert ET.fromstring(chart)[0].text
        assert "prefers-color-scheme: dark" in chart
