"""Rewind of the consumer to the committed offsets after an abort.

The committed offsets are fetched from the coordinator, because a commit whose outcome is unknown may have succeeded.
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
    """Have the records of a transaction read again; retry until the committed offsets are fetched.

    Raises:
        BrokerError: the error is not retriable.
        AuthenticationError: the brokers refuse the credentials.
    """
    failures = 0
    while partitions:
        try:
            committed = await group_view.committed_offsets(partitions.partitions())
        except (BrokerError, BrokerConnectionError) as error:
            if isinstance(error, AuthenticationError) or (isinstance(error, BrokerError) and not error.retriable):
                raise
            failures += 1
            await asyncio.sleep(backoff.pause_s(failures, random.random()))  # noqa: S311 - for jitter
        else:
            partitions.read_again(group_view, committed)
