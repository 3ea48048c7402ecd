"""After a transaction that was taken back: its records are read again, from where the group has committed.

Rule of this file: the broker says where that is, whether or not we think to know; of a commit in doubt only it does.
"""

from __future__ import annotations

import asyncio
import random

from penstock.app.transactions.seams import Foothold
from penstock.app.transactions.shares import Shares
from penstock.core.backoff import Backoff
from penstock.errors import AuthenticationError, BrokerConnectionError, BrokerError

__all__ = ["go_back"]


async def go_back(shares: Shares, foothold: Foothold, backoff: Backoff) -> None:
    """Have all that a transaction had read again, however long nobody says from where.

    Raises:
        BrokerError: another try would not help.
        AuthenticationError: nor would it here.
    """
    failures = 0
    while shares:
        try:
            committed = await foothold.committed(shares.partitions())
        except (BrokerError, BrokerConnectionError) as error:
            if isinstance(error, AuthenticationError) or (isinstance(error, BrokerError) and not error.retriable):
                raise
            failures += 1
            await asyncio.sleep(backoff.pause_s(failures, random.random()))  # noqa: S311 - for jitter
        else:
            shares.read_again(foothold, committed)
