"""Page about KEDA: its samples have KEDA's fields, and its numbers are those of a running app."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tailrace import App, Record
from tailrace.config import resolve
from tailrace.integrations.cluster_exporter import ClusterExporter, name_filter, serve_exporter
from tailrace.integrations.endpoints import serve
from tailrace.net.cluster import Cluster
from tests.support.consumer_group import until

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "scale-with-keda.md").read_text()
OBJECTS = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
TRIGGERS = [trigger for one in OBJECTS for trigger in one["spec"]["triggers"]]

# KEDA 2.21: fields of a ScaledObject, and metadata of the triggers, without authentication.
SPEC = {
    "scaleTargetRef",
    "pollingInterval",
    "cooldownPeriod",
    "initialCooldownPeriod",
    "idleReplicaCount",
    "minReplicaCount",
    "maxReplicaCount",
    "fallback",
    "advanced",
    "triggers",
}
REQUIRED = {
    "kafka": {"bootstrapServers", "consumerGroup"},
    "metrics-api": {"url", "valueLocation", "targetValue"},
    "prometheus": {"serverAddress", "query", "threshold"},
}
NUMBERS = {
    "kafka": {"lagThreshold", "activationLagThreshold"},
    "metrics-api": {"targetValue", "activationTargetValue"},
    "prometheus": {"threshold", "activationThreshold"},
}
BOOLEANS = {
    "kafka": {
        "allowIdleConsumers",
        "scaleToZeroOnInvalidOffset",
        "excludePersistentLag",
        "limitToPartitionsWithLag",
        "ensureEvenDistributionOfPartitions",
        "fullMetadata",
        "unsafeSsl",
    },
    "metrics-api": {"unsafeSsl", "aggregateFromKubeServiceEndpoints"},
    "prometheus": {"ignoreNullValues", "unsafeSsl"},
}
OTHERS = {
    "kafka": {"topic", "offsetResetPolicy", "version", "partitionLimitation", "sasl", "tls", "awsRegion"},
    "metrics-api": {"format", "timeout", "aggregationType"},
    "prometheus": {"namespace", "customHeaders", "queryParameters", "timeout"},
}
CHOICES = {
    "offsetResetPolicy": {"latest", "earliest"},
    "format": {"json", "xml", "yaml", "prometheus"},
    "aggregationType": {"average", "sum", "max", "min"},
}


def value_at(report: object, location: str) -> object:
    """Return the value at a GJSON path of plain names."""
    for name in location.split("."):
        assert isinstance(report, dict)
        report = report[name]
    return report


def evaluated(query: str, text: str) -> float:
    """Return the value of a query of the form ``sum(metric{label="value",...})`` on scraped metrics."""
    parsed = re.fullmatch(r'(sum|max)\((\w+)\{((?:\w+="[^"]*",?)+)\}\)', query)
    assert parsed is not None, query
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', parsed[3]))
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    values = [one.value for one in samples if one.name == parsed[2] and wanted.items() <= one.labels.items()]
    assert values, f"no series for {query}"
    return {"sum": sum, "max": max}[parsed[1]](values)


def triggers_of(kind: str) -> list[dict]:
    return [one["metadata"] for one in TRIGGERS if one["type"] == kind]


def test_the_page_has_a_sample_of_each_scaler():
    """The page has a sample of each scaler in its table."""
    assert {one["type"] for one in TRIGGERS} == {"kafka", "metrics-api", "prometheus"}


@pytest.mark.parametrize("scaled", OBJECTS, ids=lambda one: one["spec"]["triggers"][0]["type"])
def test_samples_have_the_fields_of_keda(scaled):
    """Kinds, fields and values of the samples are those of KEDA's reference, and metadata are text."""
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert scaled["spec"].keys() <= SPEC
    assert scaled["spec"]["scaleTargetRef"].keys() == {"name"}
    assert scaled["spec"]["minReplicaCount"] <= scaled["spec"]["maxReplicaCount"]
    for trigger in scaled["spec"]["triggers"]:
        kind, metadata = trigger["type"], trigger["metadata"]
        assert trigger.keys() <= {"type", "metadata", "metricType"}
        assert trigger.get("metricType", "AverageValue") in {"AverageValue", "Value"}
        assert all(isinstance(value, str) for value in metadata.values())
        assert REQUIRED[kind] <= metadata.keys()
        assert metadata.keys() <= REQUIRED[kind] | NUMBERS[kind] | BOOLEANS[kind] | OTHERS[kind]
        assert all(float(metadata[name]) >= 0 for name in NUMBERS[kind] & metadata.keys())
        assert {metadata[name] for name in BOOLEANS[kind] & metadata.keys()} <= {"true", "false"}
        assert all(metadata[name] in CHOICES[name] for name in CHOICES.keys() & metadata.keys())
        assert not (metadata.get("allowIdleConsumers") == metadata.get("limitToPartitionsWithLag") == "true")


def test_an_aggregated_url_names_service_namespace_and_port():
    """The URL of a sample has the Service, its namespace, and the port of the pods."""
    for metadata in triggers_of("metrics-api"):
        address = urlsplit(metadata["url"])
        assert metadata["aggregateFromKubeServiceEndpoints"] == "true"
        assert re.fullmatch(r"[\w-]+\.[\w-]+(\.svc\.cluster\.local)?", address.hostname or "")
        assert (address.port, address.path) == (8080, "/lag")


async def test_the_numbers_are_those_of_a_running_app(kafka_server, new_topic, witness, group):
    """Each sample's value for a running app is the number that the page has."""
    topic, blocked, ends = new_topic(), {42, 45, 46}, asyncio.Event()
    witness.produce(topic, (b"%d" % n for n in range(47)))
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
    )

    @app.handler(topic, order_by="none", concurrency=10)
    async def handle(record: Record):
        if record.offset in blocked:
            await ends.wait()

    def partition():
        return app.statistics().consumers[0].partitions[0]

    cluster = Cluster(resolve({"bootstrap_servers": kafka_server.bootstrap_servers}))
    exporter = ClusterExporter(
        cluster, topics=name_filter(re.compile(topic)), groups=name_filter(re.compile(group)), timeout_s=8
    )
    async with (
        serve(app, port=0, host="127.0.0.1") as server,
        serve_exporter(exporter, port=0, host="127.0.0.1") as cluster_server,
        httpx.AsyncClient(timeout=20) as client,
        app,
    ):
        await app.wait_ready()
        await until(lambda: (partition().committed, partition().work_lag, partition().lag) == (42, 3, 5))
        report = (await client.get(f"http://127.0.0.1:{server.port}/lag")).json()
        of_app = (await client.get(f"http://127.0.0.1:{server.port}/metrics")).text
        of_cluster = (await client.get(f"http://127.0.0.1:{cluster_server.port}/metrics")).text
        committed = partition().committed
        ends.set()
    end = (await witness.ends(topic, 1))[0]
    cluster.close()

    def value(query: str) -> float:
        query = query.replace('"billing"', f'"{group}"').replace('"orders"', f'"{topic}"')
        return evaluated(query, of_cluster if "kafka_" in query else of_app)

    # KEDA's kafka scaler: end offset minus committed offset.
    assert end - committed == 5
    assert re.search(r"committed offset +42\nlag +5: .*\nwork lag +3: 42, 45, 46\n", PAGE)
    found = {
        metadata["valueLocation"]: value_at(report, metadata["valueLocation"])
        for metadata in triggers_of("metrics-api")
    }
    assert found["work_lag"] == 3
    assert 0 < found["lag_seconds"] < 600
    answer = re.search(r"localhost:8080/lag\n(\{.*\})", PAGE)
    assert yaml.safe_load(answer[1]).keys() == report.keys()
    values = {metadata["query"]: value(metadata["query"]) for metadata in triggers_of("prometheus")}
    by_metric = {re.findall(r"\w+", query)[1]: number for query, number in values.items()}
    assert by_metric["tailrace_partition_work_lag"] == 3
    assert 0 < by_metric["tailrace_partition_lag_seconds"] < 600
    assert by_metric["kafka_consumergroup_lag_sum"] == 5
    assert by_metric.keys() == {
        "tailrace_partition_work_lag",
        "tailrace_partition_lag_seconds",
        "kafka_consumergroup_lag_sum",
    }
