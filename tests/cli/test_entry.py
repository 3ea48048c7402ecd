"""What every command promises: help that fits, errors in a sentence, exit codes, no waiting for what is not used."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from tailrace import TailraceError
from tailrace.cli import entry, main
from tailrace.errors import ConfigurationError
from tailrace.extras import install_hint
from tests.support.commands import environment, tailrace

HELPS = [["--help"], *([name, "--help"] for name in entry.COMMANDS)]


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_fits_and_teaches_and_waits_for_nothing(arguments):
    """It has 80 columns, shows how the command is called, and is there at once, without a client, a loop, a screen."""
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
    """Each command stands in `tailrace --help` with a line about what it does."""
    lines = tailrace("--help").stdout.splitlines()

    for name, listed in entry.COMMANDS.items():
        assert any(line.split()[:1] == [name] and line.endswith(listed.summary) for line in lines)


def test_it_tells_its_version():
    """`tailrace --version` is the version of the package."""
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
def test_a_wrong_call_is_told_what_is_right(arguments, hint):
    """Called wrongly it says how to call it, on stderr, and ends with 2."""
    done = tailrace(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


# ---- how a command ends --------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    """Makes a command of one function, called `thing`."""

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
def test_the_exit_code_is_the_commands(command, code):
    """What a command gives is what the process ends with."""
    command(lambda _options: code)

    assert main(["thing"]) == code


@pytest.mark.parametrize(
    ("error", "told"),
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
def test_an_error_of_ours_is_a_sentence(command, capsys, error, told):
    """Whatever tailrace raises, alone or from several tasks, is told in a line each, without a traceback."""
    command(raising(error))

    assert main(["thing"]) == 1
    assert capsys.readouterr().err.splitlines() == [f"tailrace thing: {line}" for line in told]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        ExceptionGroup("tasks", [TailraceError("a"), ValueError("a bug")]),
        ModuleNotFoundError("No module named 'tailrace.lost'", name="tailrace.lost"),
    ],
    ids=["one", "among ours", "a module of ours"],
)
def test_a_bug_is_not_hidden(command, error):
    """What is no error of ours keeps its traceback."""
    command(raising(error))

    with pytest.raises(type(error)):
        main(["thing"])


def test_ctrl_c_ends_with_130(command):
    """As shells expect of a program that SIGINT ended."""
    command(raising(KeyboardInterrupt()))

    assert main(["thing"]) == 130


def test_an_extra_that_is_missing_is_named():
    """Without rich, a command says in one sentence what to install."""
    program = "import sys; sys.modules['rich'] = None; from tailrace.cli import main; sys.exit(main(['demo']))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tailrace demo: rich is not installed - {install_hint('demo')}\n"


def test_a_broker_that_is_not_there_is_told_at_once():
    """An address where nobody listens is one sentence and exit code 1."""
    done = tailrace("demo", "--bootstrap-servers", "127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr.startswith("tailrace demo: no broker answers: 127.0.0.1:1: connection refused - ")
    assert done.stderr.count("\n") == 1
