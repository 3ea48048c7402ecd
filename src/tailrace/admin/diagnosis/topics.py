"""Facts about topics: partitions, settings and authorized operations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tailrace.admin.diagnosis.brokers import reason_and_advice
from tailrace.admin.diagnosis.topic_findings import SETTINGS, TopicFacts
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.protocol.admin import ConfigsToDescribe, DescribeConfigsRequest
from tailrace.protocol.metadata import MetadataRequest, MetadataTopic

__all__ = ["BROKER", "all_topics", "broker_settings", "named_topics", "topics_with_settings"]

TOPIC, BROKER = 2, 4
"""Types of resources in DescribeConfigs."""

_MAX_TOPICS = 500
"""Maximum number of topics in a request for settings, so that the response has at most about 1 MB."""


async def all_topics(cluster: Cluster) -> dict[str, TopicFacts]:
    """Return all topics that the principal may describe, by name.

    Raises:
        BrokerError: a broker returned an error.
        BrokerConnectionError: no broker answered.
    """
    answer = await cluster.send_to_any(MetadataRequest(None))
    if answer.error_code:
        raise broker_error(answer.error_code, "listing topics")
    return {one.name: TopicFacts.of(one) for one in answer.topics if one.name is not None}


async def named_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicFacts]:
    """Return the topics ``names`` with their authorized operations; a topic that does not exist has an error code.

    Raises:
        BrokerError: a broker returned an error.
        BrokerConnectionError: no broker answered.
    """
    wanted = tuple(MetadataTopic(name) for name in sorted(names))
    if not wanted:
        return {}
    answer = await cluster.send_to_any(MetadataRequest(wanted, include_topic_authorized_operations=True))
    if answer.error_code:
        raise broker_error(answer.error_code, "describing topics")
    found = {one.name: TopicFacts.of(one) for one in answer.topics if one.name is not None}
    return {
        one.name: found.get(one.name, TopicFacts(one.name, ErrorCode.UNKNOWN_SERVER_ERROR))
        for one in wanted
        if one.name is not None
    }


async def topics_with_settings(cluster: Cluster, topics: Collection[TopicFacts]) -> list[TopicFacts]:
    """Return ``topics``, each with its settings, or with the reason why its settings are unknown."""
    existing = [one.name for one in topics if one.partitions]
    settings: dict[str, Mapping[str, str]] = {}
    reasons: dict[str, str] = {}
    for start in range(0, len(existing), _MAX_TOPICS):
        names = existing[start : start + _MAX_TOPICS]
        try:
            await _add_settings(cluster, names, settings, reasons)
        except TailraceError as error:
            reasons.update(dict.fromkeys(names, reason_and_advice(error)[0]))
    return [replace(one, settings=settings.get(one.name, {}), no_settings=reasons.get(one.name, "")) for one in topics]


async def _add_settings(
    cluster: Cluster, names: Iterable[str], settings: dict[str, Mapping[str, str]], reasons: dict[str, str]
) -> None:
    request = DescribeConfigsRequest(tuple(ConfigsToDescribe(TOPIC, name, SETTINGS) for name in names))
    for one in (await cluster.send_to_any(request)).results:
        if one.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            reasons[one.resource_name] = "not authorized to DescribeConfigs"
        elif one.error_code:
            reasons[one.resource_name] = name_of(one.error_code)
        else:
            settings[one.resource_name] = {entry.name: entry.value for entry in one.configs if entry.value is not None}


async def broker_settings(
    cluster: Cluster, node_id: int, names: tuple[str, ...], timeout_s: float
) -> Mapping[str, str]:
    """Return the values of the settings ``names`` of a broker.

    Raises:
        BrokerError: the principal is not authorized to DescribeConfigs on the cluster.
        BrokerConnectionError: the broker did not answer.
    """
    request = DescribeConfigsRequest((ConfigsToDescribe(BROKER, str(node_id), names),))
    (answer,) = (await cluster.broker(node_id).send(request, timeout_s=timeout_s)).results
    if answer.error_code:
        raise broker_error(answer.error_code, answer.error_message or "not described")
    return {entry.name: entry.value for entry in answer.configs if entry.value is not None}
