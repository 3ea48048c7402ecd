"""Options of a consumer.

The module ``options`` declares the options, ``consumer_options`` documents them, ``resolution`` determines their values
from arguments and environment variables, and checks them.
"""

from __future__ import annotations

from tailrace.config.consumer_options import ConsumerOptions
from tailrace.config.options import (
    ASSIGNMENT_STRATEGIES,
    ConsumerConfig,
    OffsetReset,
    PostRebalanceCallback,
    RebalanceListener,
    SecurityProtocol,
    TokenProvider,
)
from tailrace.config.resolution import (
    check_names,
    check_positive,
    hide_secrets,
    parse_option,
    refuse_inline_pem,
    resolve,
    split_address,
    with_changes,
)

__all__ = [
    "ASSIGNMENT_STRATEGIES",
    "ConsumerConfig",
    "ConsumerOptions",
    "OffsetReset",
    "PostRebalanceCallback",
    "RebalanceListener",
    "SecurityProtocol",
    "TokenProvider",
    "check_names",
    "check_positive",
    "hide_secrets",
    "parse_option",
    "refuse_inline_pem",
    "resolve",
    "split_address",
    "with_changes",
]
