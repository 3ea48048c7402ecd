"""App of a chain, run as a process: passes records to the next topic, exactly once.

python eos_chain_program.py <source> <target> <options of App as JSON>
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tailrace import App, Message, Record


def main(source: str, target: str, options: str) -> None:
    app = App(delivery="exactly_once", **json.loads(options))

    @app.handler(source, publish=target, order_by="key")
    async def pass_on(record: Record) -> Message:
        if record.offset % 50 == 0:
            # Some handlers yield to the event loop, so that keys overtake each other.
            await asyncio.sleep(0.001)
        return Message(record.value, key=record.key)

    @app.on_start
    def tell() -> None:
        os.write(1, b"running\n")

    asyncio.run(app.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
