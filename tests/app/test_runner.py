"""A program without a broker, or at Ctrl-C, ends with few lines that say what to do."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.commands import environment

CONSUMER = """
import tailrace
async def main():
    async with tailrace.Consumer("orders", bootstrap_servers="127.0.0.1:1", start_timeout_ms=2_500):
        pass
tailrace.run(main())
"""
APP = """
import tailrace
app = tailrace.App(group_id="g", bootstrap_servers="127.0.0.1:1", start_timeout_ms=2_500)
@app.handler("orders")
async def handle(value: bytes) -> None: ...
tailrace.run(app.run())
"""
WAITING = """
import asyncio, tailrace
async def main():
    print("up", flush=True)
    await asyncio.sleep(60)
tailrace.run(main())
"""
CATCHING = f"""
try:
    {WAITING.replace(chr(10), chr(10) + "    ")}
except KeyboardInterrupt:
    print("caught")
"""
HOOKED = f"""
import sys
sys.excepthook = lambda kind, *_: print("hooked", kind.__name__)
{CATCHING}
raise ValueError
"""


@pytest.mark.parametrize("program", [CONSUMER, APP], ids=["consumer", "app"])
def test_without_a_broker_a_program_says_so_once(program):
    """There is one line in the log at once, and a traceback of the program's own lines with one error."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )

    assert done.returncode == 1
    assert done.stderr.count("broker unreachable") == 1
    assert done.stderr.count("Traceback") == 1
    assert len(done.stderr.splitlines()) <= 12
    assert "127.0.0.1:1: connection refused" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("program", "code", "output"),
    [(WAITING, 130, ""), (CATCHING, 0, "caught\n"), (HOOKED, 1, "caught\nhooked ValueError\n")],
)
def test_ctrl_c_ends_a_program_without_a_traceback(program, code, output):
    """The exit code is that of Ctrl-C; a program can catch KeyboardInterrupt, and keeps its own sys.excepthook."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)

    assert (process.returncode, out, errors) == (code, output, "")
