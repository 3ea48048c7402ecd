"""Examples on the page about admin tools."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tailrace.cli import entry

PAGE = (Path(__file__).parents[2] / "docs/howto/inspect-and-reset-groups.md").read_text()


async def test_the_program_of_the_page_resets_a_group(kafka_server, witness, new_topic, commit, group):
    """The program shows the lag, prints the plan, and resets the offsets by an hour."""
    topic = new_topic(1, records=10)  # almost an hour old
    commit(group, topic, {0: 7})
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0].replace(
        "localhost:9092", kafka_server.bootstrap_servers
    )
    program = program.replace("3600", "3700")
    program = program.replace('"orders"', f'"{topic}"').replace('"billing"', f'"{group}"')

    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 [")
    assert await witness.committed(group, topic, 1) == {0: 0}


def test_the_commands_of_the_page_are_valid():
    """The parser accepts each command line of the page."""
    lines = re.findall(r"^\$ tailrace (.*)$", PAGE, re.MULTILINE)
    for line in lines:
        name, *arguments = shlex.split(line.partition(" | ")[0], comments=True)
        command = __import__(f"tailrace.cli.{name}", fromlist=["arguments"])
        parser = entry._parser(f"tailrace {name}")
        command.arguments(parser)
        parser.parse_args(arguments)

    assert len(lines) == 9
