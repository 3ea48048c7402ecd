"""`tailrace` in a child process, 80 columns wide, without options from the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "tailrace"]

SOON_OVER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that runs for seconds: full compilation would take half of its time."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    screen = {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONWARNINGS": "default"}
    return {**kept, **screen, "SPARK_SUBMIT_OPTS": SOON_OVER, **more}


def tailrace(*arguments: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**variables),
        check=False,
    )


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command whose stdout is read line by line."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], label: str) -> str:
    """Return the rest of the line that starts with ``label``."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(label):
            return line.removeprefix(label).strip()
    raise AssertionError(f"it ended without a line of {label!r}")


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal and return the exit code and the remaining output."""
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out + errors


def without_java(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return ``variables`` as on a machine without Java, with ``folder`` as PATH."""
    commands = folder / "commands"
    commands.mkdir()
    for home in ("/bin", "/usr/bin"):
        for command in Path(home).iterdir():
            if command.name != "java" and not (commands / command.name).is_symlink():
                (commands / command.name).symlink_to(command)
    places = [one for one in variables["PATH"].split(os.pathsep) if not Path(one, "java").exists()]
    changed = {**variables, "PATH": os.pathsep.join([*places, str(commands)])}
    changed.pop("JAVA_HOME", None)
    return changed
