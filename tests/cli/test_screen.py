"""Output on a terminal and elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from tailrace.cli.output import count
from tailrace.cli.screen import megabytes, per_second
from tests.support.commands import COMMAND, environment


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns, and return its exit code and output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM="xterm-256color")
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(ours, 65_536)
            except OSError:  # end of the pseudoterminal on Linux
                break
        os.close(ours)
    return process.returncode, written.decode()


def test_a_terminal_shows_transient_progress_bars(kafka_server):
    """A terminal shows progress bars, which are removed at the end."""
    servers = kafka_server.bootstrap_servers

    code, written = on_a_terminal("demo", "--rate", "5000", "--limit", "5000", "--bootstrap-servers", servers)

    seen = {int(done.replace(",", "")) for done in re.findall(r"([\d,]+) of 5,000", written)}
    assert code == 0
    assert {done for done in seen if 0 < done < 5_000}
    assert "━" * 10 in written
    assert written.endswith("everything was removed\r\n")


@pytest.mark.parametrize(
    ("number", "seconds", "text"),
    [(336_776, 0.85, "396,000"), (1_000, 1, "1,000"), (12, 8, "2"), (5, 0, "5,000,000,000")],
)
def test_rates_have_three_significant_digits(number, seconds, text):
    assert per_second(number, seconds) == text


def test_numbers_have_separators():
    assert (count(336_776), megabytes(100_854_490), megabytes(1_234_567)) == ("336,776", "101 MB", "1.2 MB")
