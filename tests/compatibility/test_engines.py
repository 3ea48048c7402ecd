"""The compatibility suite on other programs that speak Kafka's protocol."""

from __future__ import annotations

import pytest

from tailrace.errors import KafkaNotAvailableError
from tests.support.compatibility.capabilities import assert_results, examine, expected_results
from tests.support.compatibility.engines import ENGINES, running_kfake, running_mock_cluster


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_each_capability_works_on_kfake():
    """Each capability works on kfake, with which franz-go is tested."""
    try:
        with running_kfake() as cluster:
            outcomes = await examine(cluster)
    except KafkaNotAvailableError as error:
        pytest.skip(str(error))

    assert_results(outcomes, expected_results(ENGINES["kfake"].refused))


async def test_librdkafka_s_mock_cluster_is_read_and_written():
    """The mock cluster, whose responses to ApiVersions and Metadata are malformed, is read and written."""
    with running_mock_cluster() as cluster:
        outcomes = await examine(cluster, ["consume", "publish"])

    assert {name: one.result for name, one in outcomes.items()} == {"consume": "yes", "publish": "yes"}


def test_kfake_without_go_names_go(monkeypatch):
    """Without Go, the error says that Go is missing."""
    monkeypatch.setenv("PATH", "/nowhere")

    with (
        pytest.raises(KafkaNotAvailableError, match="install Go"),
        running_kfake(),
    ):
        pass
