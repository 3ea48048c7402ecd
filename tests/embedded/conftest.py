"""Processes and files that a run leaves behind, and Python child processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tailrace.embedded import jars

PATIENCE_S = 60


class Temporary:
    """Folder for temporary files of a test, and the brokers whose files are in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def run_folders(self) -> list[Path]:
        return sorted(self.folder.glob("tailrace-kafka-*/*"))

    @property
    def brokers(self) -> set[int]:
        """Process ids of the JVMs with files in this folder, by their command lines."""
        found = set()
        for process in psutil.process_iter(["cmdline", "status"]):
            command = " ".join(process.info["cmdline"] or ())
            if "java" in command and str(self.folder) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.brokers == set()
        assert [path for path in self.folder.rglob("*") if "tailrace" in path.name] == []


class Child:
    """Python process that runs a script and reports its progress in lines."""

    def __init__(self, script: str, temporary: Path, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary), **environ},
        )

    def line(self) -> str:
        """Return the next line of output."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline().strip() if readable else ""
        assert line, f"it said nothing: {self.errors() if self.process.poll() is not None else 'it still runs'}"
        return line

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Iterator[Temporary]:
    """Provide a folder for the runs of this process and its children, and kill brokers left by a failed test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    found = Temporary(folder)
    yield found
    for pid in found.brokers:
        psutil.Process(pid).kill()


@pytest.fixture
def new_child(temporary) -> Iterator[Callable[..., Child]]:
    """Start a script as a child process."""
    with ExitStack() as stack:

        def start(script: str, **environ: str) -> Child:
            child = Child(script, temporary.folder, environ)
            stack.enter_context(child.process)
            stack.callback(child.process.kill)
            return child

        yield start


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait for a condition of the operating system, such as the end of a process."""

    def wait(happened: Callable[[], object], what: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < give_up_at, f"waited in vain for {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def empty_cache(monkeypatch, tmp_path) -> Path:
    """Provide an empty cache, as on a machine that has never started a broker."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not jars.cache_folder().is_relative_to(tmp_path):
        pytest.skip("this system has no variable for its cache")
    return jars.cache_folder()


@pytest.fixture(autouse=True)
def no_external_broker(monkeypatch) -> None:
    """Unset the variable of external brokers."""
    monkeypatch.delenv("TAILRACE_TEST_BOOTSTRAP_SERVERS", raising=False)
