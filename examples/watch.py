"""Print the new records of a topic, one line each.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; prints a variable to export
python examples/watch.py orders                       # in another, with that variable
python examples/shop.py order ann 5                   # in a third: place an order

Without a group, the consumer reads all partitions and does not affect other consumers.
"""

from __future__ import annotations

import contextlib
import sys

import tailrace
from tailrace import Consumer


async def watch(topic: str) -> None:
    """Print records until Ctrl-C or SIGTERM."""
    async with Consumer(topic) as records:
        async for record in records:
            print(f"{record.partition}@{record.offset} {record.key!r} {record.value!r}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        tailrace.run(watch(sys.argv[1]))
