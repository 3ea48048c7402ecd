"""Code of the README runs unchanged, and links between pages are valid."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def is_python(block: str) -> bool:
    try:
        compile(block, "a page", "exec")
    except SyntaxError:
        return False
    return True


class Readme:
    """The README's commands and programs, run in an environment that has no other package."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        self._programs = folder / "venv" / "bin"
        path = f"{self._programs}:{os.environ['PATH']}"
        hidden = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
        self._environment = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith("TAILRACE_")}
        self._environment |= {"PATH": path, "PYTHONUNBUFFERED": "1"}
        self._running: dict[str, tuple[subprocess.Popen[str], Path]] = {}

    def save(self, program: str) -> None:
        name = re.match(r"# (\w+\.py)\n", program).group(1)
        (self._folder / name).write_text(self._addressed(program))

    def run(self, command: str) -> str:
        """Run ``command`` to its end and return its output."""
        folder = ROOT if command.startswith("pip ") else self._folder
        done = subprocess.run(
            self._addressed(command), shell=True, cwd=folder, env=self._environment, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, command: str) -> None:
        """Start a command that runs until it is interrupted."""
        log = self._folder / f"{len(self._running)}.log"
        words = shlex.split(self._addressed(command))
        words[0] = str(self._programs / words[0])
        with log.open("w") as output:
            process = subprocess.Popen(
                words, cwd=self._folder, env=self._environment, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        self._running[command] = (process, log)

    def wait_for(self, command: str, *texts: str) -> None:
        """Wait until the running ``command`` has printed all ``texts``."""
        process, log = self._running[command]
        deadline = time.monotonic() + 90
        while any(text not in log.read_text() for text in texts):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{texts} not in: {log.read_text()}"
            time.sleep(0.1)

    def stop(self) -> dict[str, int]:
        """Send SIGTERM to running processes in reverse order, and return the exit codes."""
        codes = {}
        for command, (process, _) in reversed(self._running.items()):
            process.terminate()
            codes[command] = process.wait(60)
        self._running.clear()
        return codes

    def kill(self) -> None:
        for process, _ in self._running.values():
            process.kill()
            process.wait(60)

    def _addressed(self, text: str) -> str:
        return text.replace("localhost:9092", self._address).replace("9092", self._address.split(":")[1])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


UNTIL_CTRL_C = ("tailrace kafka", "tailrace run", "python read_invoices.py")
PRINTS = {
    "tailrace kafka": ("ready in",),
    "tailrace run": ("group joined",),
    "python read_invoices.py": ('"ann","paid":5', '"bob","paid":7'),
    "tailrace demo": ("336,776 records were handled exactly once",),
    "python place_orders.py": ("placed ann 5", "placed bob 7", "placed ann -1"),
    "tailrace lag": ("orders",),
    "tailrace dead-letters": ("negative total",),
    "python -c": ("rejected",),
}
"""The texts that each command prints."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_in_the_readme_runs_in_order_in_an_empty_environment(tmp_path):
    """The README's commands and programs, run in order in an empty environment, print the promised output."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    readme = Readme(tmp_path, f"localhost:{free_port()}")
    try:
        for language, block in re.findall(r"```(python|console)\n(.*?)```", PAGES[0].read_text(), re.DOTALL):
            if language == "python":
                readme.save(block)
                continue
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                texts = next((texts for start, texts in PRINTS.items() if command.startswith(start)), ())
                if command.startswith(UNTIL_CTRL_C):
                    readme.start(command)
                    readme.wait_for(command, *texts)
                else:
                    output = readme.run(command)
                    assert [text for text in texts if text not in output] == [], output
                if command == "python place_orders.py":
                    readme.wait_for("tailrace run shop:billing", "record dead lettered")
        codes = readme.stop()
        # SIGTERM ends the broker's command with its exit code; the consumers commit, leave and exit with 0.
        assert {code for command, code in codes.items() if not command.startswith("tailrace kafka")} == {0}
        assert codes["tailrace kafka --port 9092 --topic orders:6 --topic invoices:6"] == 128 + signal.SIGTERM
    finally:
        readme.kill()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_every_page_is_python(page):
    """Each Python block of a page compiles."""
    assert [block for block in blocks(page) if not is_python(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    """Each file or folder that a page names in backquotes exists."""
    named = re.findall(r"`((?:src/|tests/|docs/|scripts/|[a-z_]+/)[\w./-]+)`", page.read_text())
    places = (ROOT, ROOT / "src" / "tailrace", ROOT / "tests" / "consumer")
    missing = [name for name in named if not any((place / name).exists() for place in places)]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    """Each link to a file of this project is valid."""
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
