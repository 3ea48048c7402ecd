"""Metrics of running apps as Prometheus scrapes them: in a web service, from another thread, and by `tailrace run`."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time

import httpx
import pytest
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailrace import App, ConfigurationError, Consumer, Record, Retry
from tailrace.integrations.endpoints import serve
from tailrace.integrations.prometheus import TailraceCollector, exposition, metrics_app
from tailrace.observe.metrics import METRICS
from tests.support.consumer_group import until


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        defaults = {
            "bootstrap_servers": kafka_server.bootstrap_servers,
            "group_id": group,
            "auto_commit_interval_ms": 50,
        }
        return App(**{**defaults, **options})

    return make


def values_of(text: str | bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples by name and labels, read by the official parser."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for one in family.samples:
            labels = tuple(sorted(one.labels.items()))
            assert labels not in found.get(one.name, {}), f"{one.name}{labels} occurs twice"
            found.setdefault(one.name, {})[labels] = one.value
    return found


def only(samples: dict[tuple[tuple[str, str], ...], float]) -> float:
    (value,) = samples.values()
    return value


class Raising(Collector):
    def collect(self):
        raise RuntimeError("broken")


class Slow(Collector):
    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def collect(self):
        self.began.set()
        self.let_go.wait(60)
        yield GaugeMetricFamily("slow", "A slow collector", 1)


async def scraped(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.get(url, headers=headers)


async def test_every_documented_metric_is_present(new_app, new_topic, witness, group):
    """A busy app has all metrics of the table except those of workers and producers."""
    one, two = new_topic(), new_topic(2)
    witness.produce(one, (b"%d" % n for n in range(100)))
    witness.produce(two, (b"%d" % n for n in range(100)))
    app = new_app(retry=Retry(attempts=1), on_failure="skip", client_id="till")

    @app.handler(one)
    async def charge(record: Record):
        if record.offset == 50:
            raise RuntimeError("no")

    @app.batch_handler(two)
    async def ship(records: list[Record]):
        await asyncio.sleep(0.001)

    async with app:
        await until(lambda: sum(found.records for found in app.statistics().handlers) == 199)
        await until(lambda: app.statistics().consumers[0].commits.count > 0)
        await until(lambda: all(found.lag == 0 for found in app.statistics().consumers[0].partitions))
        text, content_type = await exposition(app, registry=CollectorRegistry())
        ends = await witness.ends(two, 2)

    found = values_of(text)
    expected = {one.name for one in METRICS if one.subject not in {"worker", "producer"}}
    assert content_type.startswith("text/plain")
    assert expected <= {re.sub(r"_(bucket|sum|count)$", "", name) if name not in expected else name for name in found}
    assert {name for name in found if not name.startswith("tailrace_")} == set()
    charged, shipped = (
        (("group", group), ("handler", charge.__qualname__)),
        (("group", group), ("handler", ship.__qualname__)),
    )
    assert found["tailrace_handler_records_total"] == {charged: 99, shipped: 100}
    assert found["tailrace_handler_skipped_total"][charged] == 1
    assert found["tailrace_handler_duration_seconds_count"][charged] == 100
    assert found["tailrace_handler_duration_seconds_bucket"][(*charged, ("le", "+Inf"))] == 100
    for partition, end in ends.items():
        labels = (("group", group), ("partition", str(partition)), ("topic", two))
        assert found["tailrace_partition_end"][labels] == found["tailrace_partition_committed"][labels] == end
    assert found["tailrace_consumer_assigned_partitions"] == {(("client_id", "till"), ("group", group)): 3}


async def test_a_web_service_serves_the_metrics(new_app, new_topic):
    """metrics_app can be mounted, and serves both formats with the metrics of the process."""
    app = new_app()

    @app.handler(new_topic())
    async def handle(record: Record):
        pass

    transport = httpx.ASGITransport(metrics_app(app))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        await app.wait_ready()
        plain = await client.get("/metrics")
        modern = await client.get("/", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        head = await client.head("/metrics")

    assert only(values_of(plain.text)["tailrace_app_ready"]) == 1
    assert "python_info" in values_of(plain.text)
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    assert (head.status_code, head.text) == (200, "")


async def test_the_collector_works_in_the_clients_own_endpoints(new_app, new_topic, kafka_server, group):
    """The collector works in the endpoints of prometheus-client, in another thread and before the start."""
    registry, topic = CollectorRegistry(), new_topic()
    app = new_app()
    reader = Consumer(topic, bootstrap_servers=kafka_server.bootstrap_servers, client_id="reader")
    registry.register(TailraceCollector(app, reader))

    @app.handler(topic)
    async def handle(record: Record):
        pass

    before = values_of(generate_latest(registry))
    transport = httpx.ASGITransport(make_asgi_app(registry))
    async with app, reader, httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        await app.wait_ready()
        inside = values_of((await client.get("/")).text)
        outside = values_of(await asyncio.to_thread(generate_latest, registry))
    after = values_of(await asyncio.to_thread(generate_latest, registry))

    assert [only(found["tailrace_app_ready"]) for found in (before, inside, outside, after)] == [0, 1, 1, 0]
    for found in (inside, outside):
        assert found.keys() >= inside.keys()  # the end of the log becomes known with the first fetch
        assert (("client_id", "reader"), ("group", "")) in found["tailrace_consumer_assigned_partitions"]


async def test_a_collector_reports_a_blocked_loop(new_app, new_topic):
    """A scrape from another thread returns in time, and has the time for which the loop was blocked."""
    registry = CollectorRegistry()
    app = new_app(heartbeat_interval_ms=200, session_timeout_ms=6_000)
    registry.register(TailraceCollector(app))

    @app.handler(new_topic())
    async def handle(record: Record):
        pass

    found = []
    async with app:
        await app.wait_ready()
        began_at = time.monotonic()
        thread = threading.Thread(target=lambda: found.append(generate_latest(registry)))
        thread.start()
        thread.join(10)  # blocks the loop
        blocked_s = time.monotonic() - began_at

    assert 1.0 < only(values_of(found[0])["tailrace_app_loop_blocked_seconds"]) <= blocked_s + 2
    assert only(values_of(found[0])["tailrace_app_live"]) == 0


# ---- server of a worker --------------------------------------------------------------------------------------------


async def test_a_worker_serves_probes_lag_and_metrics(new_app, new_topic, witness):
    """The server answers from before the app's start until after its stop, and then frees its port."""
    topic, let_go = new_topic(), asyncio.Event()
    witness.produce(topic, (b"%d" % n for n in range(10)))
    app = new_app()

    @app.handler(topic, order_by="none", concurrency=10)
    async def handle(record: Record):
        if record.offset == 4:
            await let_go.wait()

    async with serve(app, port=0, host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        starting = await scraped(f"{url}/readyz")
        async with app:
            await until(lambda: app.statistics().handlers[0].records == 9)
            live, ready, lag, metrics, missing = [
                await scraped(f"{url}{path}") for path in ("/livez", "/readyz?now", "/lag", "/metrics", "/else")
            ]
            let_go.set()
        stopped = await scraped(f"{url}/readyz")
        still = await scraped(f"{url}/metrics")

    assert [one.status_code for one in (starting, live, ready, lag, metrics, missing)] == [503, 200, 200, 200, 200, 404]
    assert stopped.status_code == 503
    assert still.status_code == 200
    assert lag.json().keys() == {"lag", "work_lag", "lag_seconds", "partitions"}
    assert (lag.json()["work_lag"], lag.json()["partitions"]) == (1, 1)
    assert lag.json()["lag_seconds"] > 0
    assert only(values_of(metrics.text)["tailrace_partition_work_lag"]) == 1
    with socket.create_server(("127.0.0.1", server.port)):
        pass


async def test_a_port_in_use_is_a_clear_error(new_app):
    """A port in use raises an error with the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot serve HTTP at 127.0.0.1:{port}.*choose another port"):
            async with serve(new_app(), port=port, host="127.0.0.1"):
                pass


async def test_a_broken_collector_neither_stops_nor_delays_records(new_app, new_topic, witness, monkeypatch):
    """A broken collector fails only its scrape, and a slow one delays no record."""
    registry = CollectorRegistry()
    monkeypatch.setattr("tailrace.integrations.prometheus.REGISTRY", registry)
    registry._collector_to_names[Raising()] = []
    topic, handled = new_topic(), []
    app = new_app()

    @app.handler(topic)
    async def handle(record: Record):
        handled.append(asyncio.get_running_loop().time())

    async with serve(app, port=0, host="127.0.0.1") as server, app:
        url = f"http://127.0.0.1:{server.port}/metrics"
        await app.wait_ready()
        broken = await scraped(url)
        registry._collector_to_names.clear()
        collector = Slow()
        registry.register(collector)
        slow = asyncio.create_task(scraped(url))
        await until(collector.began.is_set)
        for _ in range(5):
            witness.produce(topic, [b"now"])
        await until(lambda: len(handled) == 5)
        collector.let_go.set()
        answer = await slow

    assert broken.status_code == 500
    assert answer.status_code == 200


async def test_probes_answer_while_the_loop_is_blocked(new_app, new_topic):
    """While the loop is blocked, the server returns failed probes and the metrics."""
    app = new_app(heartbeat_interval_ms=200, session_timeout_ms=6_000)

    @app.handler(new_topic())
    async def handle(record: Record):
        pass

    found = []
    async with serve(app, port=0, host="127.0.0.1") as server, app:
        await until(lambda: [one.position for one in app.statistics().consumers[0].partitions] == [0])
        thread = threading.Thread(
            target=lambda: found.extend(
                httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=10) for path in ("/livez", "/metrics")
            )
        )
        thread.start()
        thread.join(15)  # blocks the loop
        healed = await scraped(f"http://127.0.0.1:{server.port}/metrics")

    assert [one.status_code for one in found] == [503, 200]
    assert "blocked for" in found[0].text
    assert only(values_of(found[1].text)["tailrace_app_loop_blocked_seconds"]) > 2
    assert only(values_of(found[1].text)["tailrace_partition_position"]) == 0
    assert healed.status_code == 200


async def test_scrapes_answer_during_rebalances_and_stops(new_app, new_topic, witness, kafka_server, group):
    """Scrapes during rebalances and the stop of an app are complete."""
    topic, statuses, is_over = new_topic(4), [], asyncio.Event()
    witness.fill(topic, 4, 500)
    app = new_app()

    @app.handler(topic)
    async def handle(record: Record):
        await asyncio.sleep(0.001)

    async def scrape(url: str) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            while not is_over.is_set():
                answer = await client.get(url)
                values_of(answer.text)
                statuses.append(answer.status_code)

    async with serve(app, port=0, host="127.0.0.1") as server:
        scraping = asyncio.create_task(scrape(f"http://127.0.0.1:{server.port}/metrics"))
        async with app:
            await app.wait_ready()
            for _ in range(2):
                async with Consumer(topic, bootstrap_servers=kafka_server.bootstrap_servers, group_id=group) as other:
                    await other.assigned()
                    await until(lambda: len(app.statistics().consumers[0].partitions) == 2)
                await until(lambda: len(app.statistics().consumers[0].partitions) == 4)
            count = len(statuses)
        await until(lambda: len(statuses) > count + 2)
        is_over.set()
        await scraping

    assert set(statuses) == {200}
