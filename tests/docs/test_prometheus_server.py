"""The dashboard and the alert rules with a real Prometheus that scrapes two processes under load."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tailrace.embedded.cluster import free_ports
from tests.support.commands import COMMAND, environment

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
SCRAPED_S = 25
APP = """
import asyncio, sys
from tailrace import App, Record, Retry

app = App(group_id="{name}", heartbeat_interval_ms=500, auto_commit_interval_ms=300)


@app.handler("{name}-orders", order_by="key", retry=Retry(attempts=2, backoff_ms=1), dead_letter="{{topic}}.dead")
async def charge(n: int) -> None:
    await asyncio.sleep(0.002)
    if n % 10 == 0:
        raise ValueError(n)


@app.batch_handler("{name}-clicks", max_records=20, max_wait_ms=50)
async def store(clicks: list[int]) -> None:
    await asyncio.sleep(0.001)


@app.handler("{name}-mails", retry=Retry(attempts=1, topic_delays_ms=[1_000]), on_failure="skip")
async def send(n: int) -> None:
    if n % 5 == 0:
        raise ValueError(n)


@app.handler("{name}-parts", concurrency=1)
async def fall_behind(n: int) -> None:
    await asyncio.sleep(0.5)


@app.handler("{name}-claims", retry=Retry(attempts=1))
async def refuse(n: int) -> None:
    raise ValueError(n)
"""
TOPICS = {"orders": 4, "clicks": 2, "mails": 1, "parts": 2, "claims": 1}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("prometheus")]


@pytest.fixture(scope="module")
def prometheus_command() -> str:
    """Find Prometheus, or install Debian's package as root."""
    if (found := shutil.which("prometheus")) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (("update",), ("install", "-y", "--no-install-recommends", "prometheus")):
            command = ["apt-get", *arguments]
            subprocess.run(command, env=variables, capture_output=True, timeout=150, check=False)
        found = shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not on PATH, and apt cannot install it")
    return found


class Prometheus:
    """Running Prometheus, queried by its HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of a response."""
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, expression: str, start: float, end: float) -> list[tuple[dict[str, str], list[float]]]:
        """Return the labels and finite samples of each series of a range query."""
        found = self.ask("query_range", query=expression, start=start, end=end, step=1)["result"]
        return [
            (one["metric"], [number for _, value in one["values"] if math.isfinite(number := float(value))])
            for one in found
        ]

    def value(self, expression: str) -> float:
        """Return the value of an expression that has a single one."""
        (only,) = self.ask("query", query=expression)["result"]
        return float(only["value"][1])


@pytest.fixture(scope="module")
def scraped(prometheus_command, kafka_server, tmp_path_factory) -> Iterator[tuple[Prometheus, str, float, float]]:
    """Scrape two processes under load each second, and kill and restart one of them."""
    folder, name = tmp_path_factory.mktemp("prometheus"), f"p{os.getpid()}-{time.time_ns() % 10_000}"
    (folder / "shop.py").write_text(APP.format(name=name))
    for topic, partitions in TOPICS.items():
        kafka_server.create_topic(f"{name}-{topic}", partitions)
    one, two, port = free_ports(3)
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(GRAFANA / "alerts.yml")],
                "scrape_configs": [
                    {"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{at}" for at in (one, two)]}]}
                ],
            }
        )
    )
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        with (folder / f"{len(processes)}.log").open("w") as log:
            variables = environment(TAILRACE_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers)
            process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    def serve(at: int) -> subprocess.Popen[bytes]:
        return start(*COMMAND, "run", "shop:app", "--http-port", str(at), "--http-host", "127.0.0.1")

    url = f"http://127.0.0.1:{port}"
    try:
        start(
            prometheus_command,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        serve(one)
        killed = serve(two)
        prometheus = Prometheus(url)
        until_answered(prometheus, "sum(tailrace_app_ready) == 2")
        began_at = time.time()
        load(kafka_server.bootstrap_servers, name, SCRAPED_S / 2)
        killed.kill()
        serve(two)
        load(kafka_server.bootstrap_servers, name, SCRAPED_S / 2)
        until_answered(prometheus, "sum(tailrace_app_live) == 2")
        yield prometheus, name, began_at, time.time()
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_answered(prometheus: Prometheus, expression: str) -> None:
    """Wait until an expression has a value; Prometheus itself may still start."""
    deadline = time.monotonic() + 90
    while True:
        try:
            if prometheus.ask("query", query=expression)["result"]:
                return
        except (httpx.TransportError, json.JSONDecodeError):
            pass
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)


def load(bootstrap_servers: str, name: str, seconds: float) -> None:
    """Produce to all topics for some seconds."""
    producer, n, until = Producer({"bootstrap.servers": bootstrap_servers}), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for topic in TOPICS:
            for _ in range(5):
                n += 1
                producer.produce(f"{name}-{topic}", str(n), key=str(n % 20))
        producer.poll(0)
        time.sleep(0.1)
    assert producer.flush(20) == 0


def test_each_query_of_the_dashboard_has_a_finite_sample(scraped):
    """Each query of a panel returns values after some seconds of load, and its legends are unique."""
    prometheus, name, began_at, ended_at = scraped
    dashboard = json.loads((GRAFANA / "tailrace.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$__rate_interval", "5s").replace("$group", name)
            found = prometheus.series(asked, began_at, ended_at)
            numbers = [number for _, samples in found for number in samples]

            assert numbers, (panel["title"], asked)
            assert min(numbers) >= 0, (panel["title"], asked)
            legends = [legend(target["legendFormat"], labels) for labels, _ in found]
            assert len(set(legends)) == len(legends), (panel["title"], legends)


def legend(text: str, labels: dict[str, str]) -> str:
    """Return a legend as Grafana writes it."""
    for label, value in labels.items():
        text = text.replace("{{" + label + "}}", value)
    return text


def test_each_alert_can_be_evaluated_and_the_expected_ones_fire(scraped):
    """All alerts can be evaluated, and only those for dead letters and blocked records must fire."""
    prometheus, _, began_at, ended_at = scraped
    rules = prometheus.ask("rules")["groups"][0]["rules"]
    assert {one["health"] for one in rules} == {"ok"}
    # At any time: the partition of the blocked records may belong to the killed process until its session ends.
    active = {labels["alertname"] for labels, _ in prometheus.series("ALERTS", began_at, ended_at)}

    assert {"TailraceDeadLetters", "TailraceRecordsBlocked"} <= active
    assert not active & {"TailraceAppNotLive", "TailraceTransactionsStalled", "TailraceCommitsFail"}


def test_prometheus_counts_what_was_handled(scraped):
    """After a process restarts, which resets its counters, rates remain positive and close to the load."""
    prometheus, name, began_at, ended_at = scraped
    asked = f'sum(rate(tailrace_handler_records_total{{group="{name}",handler="store"}}[10s]))'
    ((_, rates),) = prometheus.series(asked, began_at + 10, ended_at)

    assert 0 < max(rates) < 500
    assert prometheus.value('count(count by (instance) (tailrace_app_live{job="shop"}))') == 2


def test_promtool_accepts_rules_and_metrics(prometheus_command, scraped):
    """`promtool check rules` and `promtool check metrics` report nothing."""
    promtool = Path(prometheus_command).with_name("promtool")
    if not promtool.exists():
        pytest.skip("promtool is not installed beside prometheus")
    prometheus, _, _, _ = scraped
    target = prometheus.ask("targets")["activeTargets"][0]["scrapeUrl"]
    rules = subprocess.run([promtool, "check", "rules", GRAFANA / "alerts.yml"], capture_output=True, check=False)
    text = httpx.get(target, timeout=20).content
    metrics = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)

    assert rules.returncode == 0, rules.stderr
    assert (metrics.returncode, metrics.stderr) == (0, b"")
