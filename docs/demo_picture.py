"""Draw docs/images/demo.svg: the output of ``tailrace demo`` in a terminal of 80 columns.

Run ``python docs/demo_picture.py`` after a change to the demo.
"""

import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "demo.svg"
CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-GJKSThl]")
"""Escape sequences that move the cursor or erase; colors end in ``m`` and are kept."""

UP_ONE_LINE = "\x1b[1A"


def run_in_terminal(command: list[str]) -> str:
    """Return the output of ``command`` in a pseudo-terminal of 80 columns."""
    os.environ |= {"COLUMNS": "80", "LINES": "50", "TERM": "xterm-256color"}
    chunks: list[bytes] = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 65536))
        return chunks[-1]

    if pty.spawn(command, read):
        sys.exit("the demo failed")
    return b"".join(chunks).decode()


def last_frame(output: str) -> str:
    """Return the lines that are left: a progress bar overwrites its own line, and what follows it moves up."""
    lines: list[str] = []
    for line in output.split("\n"):
        if UP_ONE_LINE in line and lines:
            lines.pop()
        lines.append(re.split(r"\r|\x1b\[2K", line.rstrip("\r"))[-1])
    return CURSOR.sub("", "\n".join(lines)).strip("\n")


def main() -> None:
    """Run the demo and save its picture."""
    command = [sys.executable, "-m", "tailrace", "demo"]
    console = Console(record=True, width=80, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), "tailrace demo"))
    console.print(Text.from_ansi(last_frame(run_in_terminal(command))))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(console.export_svg(title="tailrace demo"))


if __name__ == "__main__":
    main()
