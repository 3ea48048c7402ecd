"""Configurations that brokers keep: of topics, of brokers, of groups."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.protocol.messages.request import Request

__all__ = [
    "AlteredConfigs",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigsToAlter",
    "ConfigsToDescribe",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribedConfigs",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
]


@dataclass(frozen=True, slots=True)
class ConfigsToDescribe:
    resource_type: int
    """2 a topic, 4 a broker, 32 a group."""
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None
    """None asks for all there are."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None where there is none, or where it is a secret."""
    read_only: bool = False
    config_source: int = -1
    """1 a topic's own, 2 to 4 of the broker, 5 Kafka's default, 8 a group's own."""
    is_sensitive: bool = False
    config_type: int = 0


@dataclass(frozen=True, slots=True)
class DescribedConfigs:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    results: tuple[DescribedConfigs, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    resources: tuple[ConfigsToDescribe, ...]


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    name: str
    operation: int
    """0 sets, 1 goes back to the default, 2 appends to a list, 3 takes from a list."""
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigsToAlter:
    resource_type: int
    """2 a topic, 4 a broker, 32 a group."""
    resource_name: str
    configs: tuple[ConfigAlteration, ...]


@dataclass(frozen=True, slots=True)
class AlteredConfigs:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse:
    responses: tuple[AlteredConfigs, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    resources: tuple[ConfigsToAlter, ...]
    validate_only: bool = False
