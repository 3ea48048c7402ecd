"""Options of a consumer.

``options`` declares them, ``consumer_options`` documents them, ``resolution`` finds their values, ``checks`` raises
errors for contradictory options, and ``spellings`` lists the options' names in other clients.
"""

from __future__ import annotations

from tailrace.config.addresses import split_address
from tailrace.config.checks import refuse_inline_pem
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
from tailrace.config.resolution import changed, check_names, parsed_option, resolve

__all__ = [
    "ASSIGNMENT_STRATEGIES",
    "ConsumerConfig",
    "ConsumerOptions",
    "OffsetReset",
    "PostRebalanceCallback",
    "RebalanceListener",
    "SecurityProtocol",
    "TokenProvider",
    "changed",
    "check_names",
    "parsed_option",
    "refuse_inline_pem",
    "resolve",
    "split_address",
]
