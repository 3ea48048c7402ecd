"""Configurations of topics, brokers and groups: DescribeConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.primitives import int8, int16, int32
from tailrace.protocol.message import ApiMessage, Request

__all__ = [
    "AlteredConfigs",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigSynonym",
    "ConfigsToAlter",
    "ConfigsToDescribe",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribedConfigs",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
]


class ConfigsToDescribe(ApiMessage):
    resource_type: int8
    """2 for a topic, 4 for a broker, 32 for a group."""
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None
    """Requested keys; None for all."""


class ConfigSynonym(ApiMessage):
    name: str
    value: str | None
    source: int8


class ConfigEntry(ApiMessage):
    name: str
    value: str | None
    """Value; None if it is not set, or is sensitive and therefore not returned."""
    read_only: bool = False
    config_source: int8 = -1
    """Source of the value: 1 for the topic, 2 to 4 for brokers, 5 for Kafka's default, 8 for the group."""
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    config_type: int8 = field(since=3, ignorable=True, default=0)
    documentation: str | None = field(since=3, ignorable=True, default=None)


class DescribedConfigs(ApiMessage):
    error_code: int16
    error_message: str | None
    resource_type: int8
    resource_name: str
    configs: tuple[ConfigEntry, ...] = ()


class DescribeConfigsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    results: tuple[DescribedConfigs, ...]


class DescribeConfigsRequest(Request[DescribeConfigsResponse], key=32, versions=(1, 4), flexible_from=4):
    resources: tuple[ConfigsToDescribe, ...]
    include_synonyms: bool = False
    include_documentation: bool = field(since=3, default=False)


class ConfigAlteration(ApiMessage):
    name: str
    operation: int8 = field("config_operation")
    """0 sets the value, 1 restores the default, 2 appends to a list, 3 removes from a list."""
    value: str | None = None


class ConfigsToAlter(ApiMessage):
    resource_type: int8
    """2 for a topic, 4 for a broker, 32 for a group."""
    resource_name: str
    configs: tuple[ConfigAlteration, ...]


class AlteredConfigs(ApiMessage):
    error_code: int16
    error_message: str | None
    resource_type: int8
    resource_name: str


class IncrementalAlterConfigsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    responses: tuple[AlteredConfigs, ...]


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse], key=44, versions=(0, 1), flexible_from=1
):
    resources: tuple[ConfigsToAlter, ...]
    validate_only: bool = False
