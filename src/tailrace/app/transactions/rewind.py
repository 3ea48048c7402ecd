"""After a transaction that was taken back: its records are read again, from where the group has committed.

Rule of this file: the broker says where that is, whether or not we think to know; of a commit in doubt only it does.
"""

from __future__ import annotations

import asyncio
import random

from tailrace.app.transactions.interfaces import GroupView
from tailrace.app.transactions.partitions import TransactionPartitions
from tailrace.core.backoff import Backoff
from tailrace.errors import AuthenticationError, BrokerConnectionError, BrokerError

__all__ = ["rewind"]


async def rewind(partitions: TransactionPartitions, group_view: GroupView, backoff: Backoff) -> None:
    """Have all that a transaction had read again, however long nobody says from where.

    Raises:
        BrokerError: another try would not help.
        AuthenticationError: nor would it here.
    """
    failures = 0
    while partitions:
        try:
            committed = await group_view.committed(partitions.partitions())
        except (BrokerError, BrokerConnectionError) as error:
            if isinstance(error, AuthenticationError) or (isinstance(error, BrokerError) and not error.retriable):
                raise
            failures += 1
            await asyncio.sleep(backoff.pause_s(failures, random.random()))  # noqa: S311 - for jitter
        else:
            partitions.read_again(group_view, committed)
