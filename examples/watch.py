"""Print what is written to a topic from now on, one line a record: python examples/watch.py orders.

It reads without a group, so it is in nobody's way. PENSTOCK_BOOTSTRAP_SERVERS says where the brokers are.
"""

from __future__ import annotations

import sys

import penstock
from penstock import Consumer


async def watch(topic: str) -> None:
    """Until Ctrl-C or SIGTERM."""
    async with Consumer(topic) as records:
        async for record in records:
            print(f"{record.partition}@{record.offset} {record.key!r} {record.value!r}", flush=True)


if __name__ == "__main__":
    penstock.run(watch(sys.argv[1]))
