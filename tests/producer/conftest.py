"""Fixtures: a broker behind a proxy, and its committed records."""

from __future__ import annotations

from tests.support.transactional_broker import (
    ledger,
    mortal_server,
    own_server,
    proxy,
    quick_broker,
    transaction_version,
    witness,
)

__all__ = ["ledger", "mortal_server", "own_server", "proxy", "quick_broker", "transaction_version", "witness"]
