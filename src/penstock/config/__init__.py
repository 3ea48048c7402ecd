"""Every option of a consumer: declared once, resolved once, then never changed.

``options`` declares them, ``resolution`` finds their values, ``checks`` refuses what contradicts itself.
"""

from __future__ import annotations

from penstock.config.addresses import split_address
from penstock.config.options import (
    ASSIGNMENT_STRATEGIES,
    ConsumerConfig,
    ConsumerOptions,
    OffsetReset,
    PostRebalanceCallback,
    RebalanceListener,
    SecurityProtocol,
    TokenProvider,
)
from penstock.config.resolution import changed, check_names, parsed_option, resolve

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
    "resolve",
    "split_address",
]
