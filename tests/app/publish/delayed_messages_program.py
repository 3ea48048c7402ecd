"""App that publishes delayed messages when they are due, run as a process.

python delayed_messages_program.py <topic> <number of messages to delay first> <options of App as JSON>
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tailrace import App, Message


def main(topic: str, count: str, options: str) -> None:
    app = App(**json.loads(options))

    @app.on_start
    async def fill() -> None:
        delay_ms = max(json.loads(options)["publish_delays_ms"])
        await app.publish_many([Message(n, key=n, delay_ms=delay_ms) for n in range(int(count))], topic)
        os.write(1, b"delayed\n")

    asyncio.run(app.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
