"""Every option of a consumer: declared once, resolved once, then never changed.

``options`` declares them, ``resolution`` finds their values, ``checks`` refuses what contradicts itself.
"""

from __future__ import annotations

from tailrace.config.addresses import split_address
from tailrace.config.checks import refuse_inline_pem
from tailrace.config.options import (
    ASSIGNMENT_STRATEGIES,
    ConsumerConfig,
    ConsumerOptions,
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
