"""Fixtures: a broker behind a proxy, its committed records, and factories of exactly-once apps."""

from __future__ import annotations

from tests.support.transactional_broker import (
    dead,
    ledger,
    mortal_server,
    new_app,
    own_server,
    proxy,
    quick_broker,
    transaction_version,
    witness,
)

__all__ = [
    "dead",
    "ledger",
    "mortal_server",
    "new_app",
    "own_server",
    "proxy",
    "quick_broker",
    "transaction_version",
    "witness",
]
