"""Print each new record of a topic on a line.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; prints an export command
python examples/watch.py orders                       # in another terminal, after that export command
python examples/shop.py order ann 5                   # in a third terminal: place an order

Without a group, the consumer reads all partitions and does not affect other consumers.
"""

from __future__ import annotations

import contextlib
import sys

import tailrace
from tailrace import Consumer


async def watch(topic: str) -> None:
    """Print records until Ctrl-C or SIGTERM."""
    async with Consumer(topic) as consumer:
        async for record in consumer:
            print(f"{record.partition}@{record.offset} {record.key!r} {record.value!r}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        tailrace.run(watch(sys.argv[1]))
