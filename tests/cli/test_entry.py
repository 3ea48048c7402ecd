"""Common behavior of all commands: help, errors, exit codes and imports."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from tailrace import TailraceError
from tailrace.cli import entry, main
from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint
from tests.support.commands import environment, tailrace

HELPS = [["--help"], *([name, "--help"] for name in entry.COMMANDS)]


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_fits_80_columns_has_examples_and_imports_little(arguments):
    """--help fits into 80 columns, has examples, and imports no client, event loop or terminal library."""
    program = f"""
import sys
from tailrace.cli import main
try:
    main({arguments})
finally:
    print(sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=True
    )

    imported = set(eval(done.stderr))
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert arguments == ["--help"] or f"  tailrace {arguments[0]}" in done.stdout.partition("examples:")[2]
    assert "tailrace" in imported
    assert imported & {"aiokafka", "anyio", "asyncio", "msgspec", "rich", "structlog"} == set()


def test_help_lists_every_command():
    """`tailrace --help` lists each command with its summary."""
    lines = tailrace("--help").stdout.splitlines()

    for name, listed in entry.COMMANDS.items():
        assert any(line.split()[:1] == [name] and line.endswith(listed.summary) for line in lines)


def test_version_is_that_of_the_package():
    """`tailrace --version` prints the version of the package."""
    from importlib.metadata import version  # noqa: PLC0415

    assert tailrace("--version").stdout == f"tailrace {version('tailrace')}\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ([], "commands:"),
        (["dmeo"], "did you mean 'demo'?"),
        (["zzz"], "choose from run, demo, kafka"),
        (["--frobnicate"], "tailrace --help"),
        (["--limit", "demo"], "options of 'demo' come after the command: tailrace demo --limit"),
        (["demo", "--limit", "none"], "invalid number value: 'none'"),
        (["demo", "--limit", "0"], "greater than 0"),
        (["demo", "--rate", "nan"], "greater than 0"),
        (["kafka", "--port", "70000"], "1 to 65535"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_exit_with_2_and_a_hint(arguments, hint):
    """A usage error exits with 2 and prints a hint on stderr."""
    done = tailrace(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


# ---- exit codes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    """Register a command `thing` with the given run function."""

    def make(run) -> None:
        module = types.ModuleType("tailrace.cli.thing")
        module.arguments, module.run = lambda _parser: None, run
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(entry.COMMANDS, "thing", entry._CommandInfo("does it", "demo"))

    return make


def raising(error: BaseException):
    def run(_options) -> int:
        raise error

    return run


@pytest.mark.parametrize("code", [0, 1])
def test_exit_code_of_a_command_is_returned(command, code):
    """The process exits with the code that the command returns."""
    command(lambda _options: code)

    assert main(["thing"]) == code


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConfigurationError("a - b"), ["a - b"]),
        (ExceptionGroup("tasks", [TailraceError("a"), ExceptionGroup("more", [TailraceError("b")])]), ["a", "b"]),
        (ExceptionGroup("tasks", [TailraceError("a"), TailraceError("a")]), ["a"]),
        (
            ModuleNotFoundError("No module named 'rich'", name="rich"),
            [f"rich is not installed - {install_hint('demo')}"],
        ),
    ],
    ids=["one", "several", "the same twice", "an extra"],
)
def test_tailrace_errors_are_printed_without_a_traceback(command, capsys, error, lines):
    """A TailraceError, or each one of a group, is printed in one line without a traceback."""
    command(raising(error))

    assert main(["thing"]) == 1
    assert capsys.readouterr().err.splitlines() == [f"tailrace thing: {line}" for line in lines]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        ExceptionGroup("tasks", [TailraceError("a"), ValueError("a bug")]),
        ModuleNotFoundError("No module named 'tailrace.lost'", name="tailrace.lost"),
    ],
    ids=["one", "among ours", "a module of ours"],
)
def test_other_errors_keep_their_traceback(command, error):
    """An error that is not a TailraceError is raised."""
    command(raising(error))

    with pytest.raises(type(error)):
        main(["thing"])


def test_sigint_exits_with_130(command):
    """KeyboardInterrupt exits with 130, as shells expect."""
    command(raising(KeyboardInterrupt()))

    assert main(["thing"]) == 130


def test_a_missing_extra_is_named():
    """Without rich, a command prints how to install it."""
    program = "import sys; sys.modules['rich'] = None; from tailrace.cli import main; sys.exit(main(['demo']))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tailrace demo: rich is not installed - {install_hint('demo')}\n"


def test_an_unreachable_broker_is_one_line_and_exit_code_1():
    """An address without a listener is one line on stderr and exit code 1."""
    done = tailrace("demo", "--bootstrap-servers", "127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr.startswith("tailrace demo: no broker answers: 127.0.0.1:1: connection refused - ")
    assert done.stderr.count("\n") == 1
