"""Warnings in a program that configures no logging."""

from __future__ import annotations

import asyncio
import sys
import textwrap

PROGRAM = """
import asyncio
from tailrace import Consumer

async def main():
    async with Consumer("orders", bootstrap_servers="127.0.0.1:1"):
        pass

asyncio.run(main())
"""


async def test_a_wrong_port_is_reported_while_the_start_retries():
    """A warning about a wrong port is written to stderr after the first failed attempt."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(PROGRAM), stderr=asyncio.subprocess.PIPE
    )
    try:
        first = await asyncio.wait_for(program.stderr.readline(), 60)
        assert program.returncode is None
    finally:
        program.kill()
        await program.communicate()

    assert b"broker unreachable" in first
    assert b"127.0.0.1:1" in first
