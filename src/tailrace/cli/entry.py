"""Entry point of the command line: ``main`` runs a command and returns its exit code.

``tailrace --help`` imports no command, and ``tailrace COMMAND`` only the named one, so both start fast. Exit codes: 0
success, 1 failure (stderr has the cause and the next step), 2 usage error, 130 SIGINT, 143 SIGTERM. The help of a
command lists its exit codes if they differ.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import shutil
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from tailrace.errors import TailraceError
from tailrace.installation import VERSION, install_hint
from tailrace.observe.log_format import escaped

__all__ = ["main", "run_coroutine"]


class _CommandInfo(NamedTuple):
    """Summary and dependencies of a command, available without importing the command."""

    summary: str
    extras: str
    """Extras of the package that the command needs, separated by commas."""
    closed_pipe_code: int = 1
    """Exit code if the reader of stdout closes the pipe: 0 for commands whose only purpose is their output."""


COMMANDS = {
    "run": _CommandInfo("run an app's handlers until SIGTERM", ""),
    "demo": _CommandInfo("publish and read 336,776 real flights on a local Kafka broker", "demo"),
    "kafka": _CommandInfo("run a local Kafka broker until Ctrl-C", "cli,testing"),
    "tail": _CommandInfo("print the records of a topic", "", closed_pipe_code=0),
    "groups": _CommandInfo("list, show or delete groups", "", closed_pipe_code=0),
    "lag": _CommandInfo("show the lag of a group", "", closed_pipe_code=0),
    "offsets": _CommandInfo("show, reset or delete a group's committed offsets", "", closed_pipe_code=0),
    "exporter": _CommandInfo("serve topics, groups and lag of a cluster to Prometheus", "prometheus"),
    "doctor": _CommandInfo("check a cluster, and what an app needs from it", "", closed_pipe_code=0),
    "spark": _CommandInfo("run an app's handlers on Apache Spark", "cli,spark"),
    "dead-letters": _CommandInfo("list, show or replay dead letters", "cli"),
}

_DESCRIPTION = """\
Run asyncio Kafka consumers, and inspect topics, groups and dead letters.
"""

_EPILOG = """\
commands:
{commands}

Run `tailrace COMMAND --help` for the options of a command and examples.

exit codes: 0 success, 1 failure, 2 usage error, 130 Ctrl-C, 143 SIGTERM
The help of a command lists its exit codes if they differ.
"""


class _Command(Protocol):
    """Interface of a command's module."""

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the command's help texts and options to ``parser``."""

    def run(self, options: argparse.Namespace, /) -> int | Coroutine[object, object, int]:
        """Run the command and return its exit code, or a coroutine that does so."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Without a handler, Python would print log records of level WARNING in addition to the command's messages.
    logging.getLogger("tailrace").addHandler(logging.NullHandler())
    name = arguments[0] if arguments and arguments[0] in COMMANDS else None
    if name is None:
        return _run_without_command(arguments)
    if "" not in sys.path:
        sys.path.append("")  # options may name modules of the current directory, as with `python -m`
    try:
        command = cast(_Command, import_module(f"tailrace.cli.{name.replace('-', '_')}"))
        parser = _parser(f"tailrace {name}")
        command.arguments(parser)
        result = command.run(parser.parse_args(arguments[1:]))
        return result if isinstance(result, int) else run_coroutine(result)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the pipe is gone. Redirect stdout, or Python reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMMANDS[name].closed_pipe_code
    except Exception as error:
        messages = _messages(error, COMMANDS[name].extras)
        if not messages:
            raise
        for message in messages:
            print(f"tailrace {name}: {_terminal_safe(message)}", file=sys.stderr)  # noqa: T201
        return 1


def run_coroutine(command: Coroutine[object, object, int]) -> int:
    """Run a command in an event loop and return its exit code, 143 after SIGTERM."""
    from tailrace.signals import run

    exit_code = run(command)
    sys.stdout.flush()
    return 143 if exit_code is None else exit_code


def _run_without_command(arguments: list[str]) -> int:  # noqa: RET503 - parser.error() does not return
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {info.summary}" for name, info in COMMANDS.items())
    parser = _parser("tailrace", usage="tailrace [--help] [--version] COMMAND ...")
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG.format(commands=commands)
    parser.add_argument("--version", action="version", version=f"tailrace {VERSION}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    command = parser.parse_known_args(arguments)[0].command
    if command is None:
        if arguments:
            parser.error(f"unknown option {arguments[0]!r} - see `tailrace --help`")
        parser.print_help(sys.stderr)
        return 2
    if command in COMMANDS:
        parser.error(f"options of {command!r} come after the command: tailrace {command} {arguments[0]}")
    close = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(COMMANDS)}"
    parser.error(f"unknown command {command!r} - {hint}")


def _parser(prog: str, usage: str | None = None) -> argparse.ArgumentParser:
    width = min(shutil.get_terminal_size().columns, 82) - 2
    formatter = partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=26)
    return argparse.ArgumentParser(prog=prog, usage=usage, formatter_class=formatter, allow_abbrev=False)


def _terminal_safe(message: str) -> str:
    """Escape control characters and indent all lines but the first."""
    return escaped(message, keep="\n").replace("\n", "\n  ")


def _messages(error: Exception, extras: str) -> list[str]:
    """Return the messages to print for ``error``, or an empty list if it must be raised with its traceback.

    Messages exist for a TailraceError, for a dependency that is not installed, and for an ExceptionGroup of only these
    errors.
    """
    if isinstance(error, ExceptionGroup):
        found = [_messages(one, extras) for one in error.exceptions]
        return list(dict.fromkeys(message for messages in found for message in messages)) if all(found) else []
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "tailrace").partition(".")[0]
        return [] if missing == "tailrace" else [f"{missing} is not installed - {install_hint(extras)}"]
    return [str(error)] if isinstance(error, TailraceError) else []
