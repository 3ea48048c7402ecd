"""Metrics of the example services against witnesses: Kafka's tool, the service's own results, and the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.observe.metrics import METRICS
from tests.support.admin_tools import KafkaTool
from tests.support.consumer_group import until

ORDERS = 12

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Found:
    """Samples of a scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

    def __call__(self, name: str, **labels: str) -> list[float]:
        """Return the values of a metric."""
        return [one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()]


async def test_the_metrics_of_a_service_are_what_witnesses_have_seen(home):
    """The metrics of a service agree with its charged, unreadable and blocked orders, and with Kafka's tool."""
    began_at = time.time()
    service = home.start(TAILRACE_AUTO_COMMIT_INTERVAL_MS="200")
    await service.wait_for_status("/readyz", 200)
    tool = KafkaTool(home.server.bootstrap_servers)
    for n in range(ORDERS):
        assert await service.order("ann", n + 1) in {200, 202}
    await until(lambda: home.how_many() == ORDERS, 90)
    home.witness.produce("orders", [b"{", b"{"], partition=2, keys=[b"bob", b"bob"])

    async def found() -> Found:
        return Found((await service.http.get("/metrics")).text)

    def is_settled(now: Found) -> bool:
        is_committed = sum(now("tailrace_partition_committed", topic="orders")) >= ORDERS
        return now("tailrace_group_blocked_records") == [1.0] and is_committed

    async with asyncio.timeout(90):
        while not is_settled(await found()):  # noqa: ASYNC110 - a scrape is the only way to know
            await asyncio.sleep(0.1)
    rows = await asyncio.to_thread(tool.rows, "--describe", "--group", "billing")
    found_now = await found()
    lived_s = time.time() - began_at
    probes = [await service.status(path) for path in ("/livez", "/readyz")]

    checks = checks_of(found_now, rows, lived_s, len(home.charged()), probes)
    assert checks.keys() == {one.name for one in METRICS if one.subject not in {"worker", "producer"}}
    for name, check in checks.items():
        assert check(found_now(name)), (name, found_now(name))


def checks_of(
    found: Found, rows: list[dict[str, str]], lived_s: float, charged: int, probes: list[int]
) -> dict[str, Callable[[list[float]], bool]]:
    """Return a check for the values of each metric, without values for a histogram."""

    def histogram(name: str, least: int, most: float = float("inf")) -> bool:
        (count,), (sum_s,) = found(f"{name}_count"), found(f"{name}_sum")
        return least <= count <= most and 0 < sum_s <= lived_s * 10

    def column(name: str, topic: str = "") -> list[float]:
        return sorted(float(row[name]) for row in rows if row[name] != "-" and row["TOPIC"].startswith(topic))

    ends = {(row["TOPIC"], row["PARTITION"]): float(row["LOG-END-OFFSET"]) for row in rows}
    return {
        "tailrace_handler_records_total": lambda values: values == [charged] == [ORDERS],
        "tailrace_handler_batches_total": lambda values: values == [],
        "tailrace_handler_duration_seconds": lambda _: histogram("tailrace_handler_duration_seconds", ORDERS),
        "tailrace_handler_in_flight": lambda values: values == [1],
        "tailrace_handler_waiting": lambda values: values[0] <= 1,
        "tailrace_handler_concurrency": lambda values: values in ([10], [64]),
        "tailrace_handler_paused": lambda values: values == [0],
        "tailrace_handler_failures_total": lambda values: 1 <= values[0] <= 1 + lived_s / 10,
        "tailrace_handler_retries_total": lambda values: 0 <= values[0] <= 1 + lived_s / 10,
        "tailrace_handler_delayed_total": lambda values: values == [0],
        "tailrace_handler_dead_letters_total": lambda values: values == [0],
        "tailrace_handler_skipped_total": lambda values: values == [0],
        "tailrace_group_blocked_records": lambda values: values == [1],
        "tailrace_group_unmatched_total": lambda values: values == [0],
        "tailrace_group_transactions_stalled_seconds": lambda values: values == [0],
        "tailrace_partition_position": lambda values: (
            sum(values) == sum(ends.values()) or sum(values) == sum(ends.values()) - 1
        ),
        "tailrace_partition_committed": lambda values: sorted(values) == column("CURRENT-OFFSET"),
        "tailrace_partition_end": lambda values: sorted(values) == column("LOG-END-OFFSET"),
        "tailrace_partition_lag": lambda values: sum(values) == sum(ends.values()) - sum(column("CURRENT-OFFSET")),
        "tailrace_partition_work_lag": lambda values: sum(values) == 2,
        "tailrace_partition_lag_seconds": lambda values: 0 < max(values) < lived_s and sorted(values)[-2] == 0,
        "tailrace_partition_paused": lambda values: set(values) == {0},
        "tailrace_partition_blocked": lambda values: set(values) == {0},
        "tailrace_consumer_assigned_partitions": lambda values: (
            values == [len([row for row in rows if row["CONSUMER-ID"] != "-"])]
        ),
        "tailrace_consumer_queued_records": lambda values: 0 <= values[0] <= 1,
        "tailrace_consumer_buffered_bytes": lambda values: 0 <= values[0] < 1_000,
        "tailrace_consumer_reserved_bytes": lambda values: 0 <= values[0] <= 64 << 20,
        "tailrace_consumer_fetched_records_total": lambda values: values == [sum(ends.values())],
        "tailrace_consumer_fetched_bytes_total": lambda values: values[0] >= 70 * sum(ends.values()) / 2,
        "tailrace_consumer_fetch_seconds": lambda _: histogram("tailrace_consumer_fetch_seconds", 1),
        "tailrace_consumer_commit_seconds": lambda _: histogram(
            "tailrace_consumer_commit_seconds", 1, 1 + lived_s / 0.2
        ),
        "tailrace_consumer_failed_commits_total": lambda values: values == [0],
        "tailrace_consumer_rebalance_seconds": lambda _: histogram("tailrace_consumer_rebalance_seconds", 1, 3),
        "tailrace_consumer_heartbeat_age_seconds": lambda values: 0 <= values[0] < 10,
        "tailrace_consumer_ignored_maps_total": lambda values: values == [0],
        "tailrace_consumer_skipped_batches_total": lambda values: values == [0],
        "tailrace_consumer_info": lambda values: values == [1],
        "tailrace_app_live": lambda values: values == [probes[0] == 200] == [1],
        "tailrace_app_ready": lambda values: values == [probes[1] == 200] == [1],
        "tailrace_app_loop_lag_seconds": lambda _: histogram("tailrace_app_loop_lag_seconds", 1, 1 + lived_s / 0.07),
        "tailrace_app_loop_blocked_seconds": lambda values: values == [0],
    }
