"""Print what is written to a topic from now on, one line a record.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; it prints what to export
python examples/watch.py orders                       # in another, after that export
python examples/shop.py order ann 5                   # in a third: something to see

It reads without a group, so it is in nobody's way.
"""

from __future__ import annotations

import contextlib
import sys

import tailrace
from tailrace import Consumer


async def watch(topic: str) -> None:
    """Until Ctrl-C or SIGTERM."""
    async with Consumer(topic) as records:
        async for record in records:
            print(f"{record.partition}@{record.offset} {record.key!r} {record.value!r}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        tailrace.run(watch(sys.argv[1]))
