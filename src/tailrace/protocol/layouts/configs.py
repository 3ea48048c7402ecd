"""Configurations of topics, brokers and groups: read, and changed one by one."""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import BOOL, INT8, INT16, INT32, STRING
from tailrace.protocol.encoding.schema import Array, Struct, field
from tailrace.protocol.messages import (
    AlteredConfigs,
    ConfigAlteration,
    ConfigEntry,
    ConfigsToAlter,
    ConfigsToDescribe,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["DESCRIBE_CONFIGS", "INCREMENTAL_ALTER_CONFIGS"]

_RESOURCE = (field("resource_type", INT8), field("resource_name", STRING))
_OUTCOME = (field("error_code", INT16), field("error_message", STRING, nullable=0))

DESCRIBE_CONFIGS = api(
    32,
    "DescribeConfigs",
    versions=(1, 4),
    flexible=4,
    message=DescribeConfigsRequest,
    request=Struct(
        DescribeConfigsRequest,
        field(
            "resources",
            Array.of(ConfigsToDescribe, *_RESOURCE, field("configuration_keys", Array(STRING), nullable=0)),
        ),
        field("include_synonyms", BOOL, 1, unused=False),
        field("include_documentation", BOOL, 3, unused=False),
    ),
    response=Struct(
        DescribeConfigsResponse,
        field("throttle_time_ms", INT32),
        field(
            "results",
            Array.of(
                DescribedConfigs,
                *_OUTCOME,
                *_RESOURCE,
                field(
                    "configs",
                    Array.of(
                        ConfigEntry,
                        field("name", STRING),
                        field("value", STRING, nullable=0),
                        field("read_only", BOOL),
                        field("config_source", INT8, 1),
                        field("is_sensitive", BOOL),
                        field(
                            "synonyms",
                            Array.of(
                                dict,
                                field("name", STRING),
                                field("value", STRING, nullable=0),
                                field("source", INT8),
                            ),
                            1,
                            unused=(),
                        ),
                        field("config_type", INT8, 3, ignorable=True),
                        field("documentation", STRING, 3, nullable=0, unused=None),
                    ),
                ),
            ),
        ),
    ),
)

INCREMENTAL_ALTER_CONFIGS = api(
    44,
    "IncrementalAlterConfigs",
    versions=(0, 1),
    flexible=1,
    message=IncrementalAlterConfigsRequest,
    request=Struct(
        IncrementalAlterConfigsRequest,
        field(
            "resources",
            Array.of(
                ConfigsToAlter,
                *_RESOURCE,
                field(
                    "configs",
                    Array.of(
                        ConfigAlteration,
                        field("name", STRING),
                        field("config_operation", INT8, attribute="operation"),
                        field("value", STRING, nullable=0),
                    ),
                ),
            ),
        ),
        field("validate_only", BOOL),
    ),
    response=Struct(
        IncrementalAlterConfigsResponse,
        field("throttle_time_ms", INT32),
        field("responses", Array.of(AlteredConfigs, *_OUTCOME, *_RESOURCE)),
    ),
)
