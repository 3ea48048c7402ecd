"""Options of consumers and producers.

The module ``options`` declares the options, ``consumer_options`` and ``producer_options`` document them,
``other_clients`` has their names in other clients, and
``resolution`` determines their values from arguments and environment variables, and checks them.
"""

from __future__ import annotations

from tailrace.config.consumer_options import ClientOptions, ConsumerOptions
from tailrace.config.options import (
    ASSIGNMENT_STRATEGIES,
    ClientConfig,
    ConsumerConfig,
    OffsetReset,
    Partitioning,
    PostRebalanceCallback,
    ProducerConfig,
    RebalanceListener,
    SecurityProtocol,
    TokenProvider,
)
from tailrace.config.producer_options import KeyT_contra, ProducerOptions, ValueT_contra
from tailrace.config.resolution import (
    app_producer_config,
    check_names,
    check_positive,
    hide_secrets,
    parse_option,
    producer_config,
    refuse_inline_pem,
    resolve,
    resolve_producer,
    similar_provider,
    split_address,
    with_changes,
)

__all__ = [
    "ASSIGNMENT_STRATEGIES",
    "ClientConfig",
    "ClientOptions",
    "ConsumerConfig",
    "ConsumerOptions",
    "KeyT_contra",
    "OffsetReset",
    "Partitioning",
    "PostRebalanceCallback",
    "ProducerConfig",
    "ProducerOptions",
    "RebalanceListener",
    "SecurityProtocol",
    "TokenProvider",
    "ValueT_contra",
    "app_producer_config",
    "check_names",
    "check_positive",
    "hide_secrets",
    "parse_option",
    "producer_config",
    "refuse_inline_pem",
    "resolve",
    "resolve_producer",
    "similar_provider",
    "split_address",
    "with_changes",
]
