"""From ``argv`` to an exit code.

Rule of this file: it knows the commands by name and nothing of what they do, so ``tailrace --help`` imports none.
Exit codes: 0 done, 1 it went wrong (one sentence on stderr says what, and what to do next), 2 it was called wrongly,
130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from tailrace.errors import TailraceError
from tailrace.extras import install_hint
from tailrace.observe.escaping import escaped

__all__ = ["main"]


class _Listed(NamedTuple):
    """What is known of a command before it is imported."""

    summary: str
    extra: str
    """What ``pip install`` has to bring beside tailrace itself."""


COMMANDS = {
    "run": _Listed("run the handlers of an app until SIGTERM", ""),
    "demo": _Listed("replay 336,776 real flights into a real broker and read them", "demo"),
    "kafka": _Listed("start a real broker on this machine, until Ctrl-C", "cli,testing"),
    "tail": _Listed("print the records of a topic", ""),
    "groups": _Listed("list groups, look into one, delete some", ""),
    "lag": _Listed("how far a group is behind", ""),
    "offsets": _Listed("show what a group has committed, or set it anew", ""),
    "spark": _Listed("run an app's handlers on Spark: stream, backfill, hand over", "cli,spark"),
    "dead-letters": _Listed("look at records that failed for good, and replay them", "cli"),
}

_DESCRIPTION = """\
Consume Apache Kafka from asyncio: see it work, look at groups and topics.
"""

_EPILOG = """\
commands:
{commands}

`tailrace COMMAND --help` tells more of each, with an example.

exit codes: 0 done, 1 it went wrong, 2 it was called wrongly, 130 Ctrl-C
"""


class _Command(Protocol):
    """What the module of a command has."""

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Say in ``parser`` what the command does and what it takes."""

    def run(self, options: argparse.Namespace, /) -> int:
        """Do it; gives the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names; gives the exit code."""
    called = list(sys.argv[1:] if argv is None else argv)
    # Commands that configure no logging end with a sentence of their own.
    logging.getLogger("tailrace").addHandler(logging.NullHandler())
    name = called[0] if called and called[0] in COMMANDS else None
    if name is None:
        return _without_command(called)
    try:
        command = cast(_Command, import_module(f"tailrace.cli.{name.replace('-', '_')}"))
        parser = _parser(f"tailrace {name}")
        command.arguments(parser)
        return command.run(parser.parse_args(called[1:]))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        ours = _sentences(error, COMMANDS[name].extra)
        if not ours:
            raise
        for sentence in ours:
            print(f"tailrace {name}: {_on_terminal(sentence)}", file=sys.stderr)  # noqa: T201
        return 1


def _without_command(called: list[str]) -> int:  # noqa: RET503 - parser.error() does not return
    from importlib.metadata import version  # noqa: PLC0415 - half of the time that a command takes to begin

    widest = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{widest}}  {listed.summary}" for name, listed in COMMANDS.items())
    parser = _parser("tailrace", usage="tailrace [--help] [--version] COMMAND ...")
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG.format(commands=commands)
    parser.add_argument("--version", action="version", version=f"tailrace {version('tailrace')}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    wanted = parser.parse_known_args(called)[0].command
    if wanted is None:
        if called:
            parser.error(f"there is no option {called[0]!r} - `tailrace --help` lists what there is")
        parser.print_help(sys.stderr)
        return 2
    close = difflib.get_close_matches(wanted, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
    if wanted in COMMANDS:
        hint = f"its options come after it: tailrace {wanted} {called[0]}"
    parser.error(f"{wanted!r} is no command here - {hint}")


def _parser(prog: str, usage: str | None = None) -> argparse.ArgumentParser:
    width = min(shutil.get_terminal_size().columns, 82) - 2
    formatter = partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=26)
    return argparse.ArgumentParser(prog=prog, usage=usage, formatter_class=formatter, allow_abbrev=False)


def _on_terminal(sentence: str) -> str:
    """Return a sentence that steers no terminal; further lines of it are indented."""
    return escaped(sentence, keep="\n").replace("\n", "\n  ")


def _sentences(error: Exception, extra: str) -> list[str]:
    """What to tell of an error of ours, or of several from tasks of one group; nothing if it is no error of ours."""
    if isinstance(error, ExceptionGroup):
        told = [_sentences(one, extra) for one in error.exceptions]
        return list(dict.fromkeys(line for lines in told for line in lines)) if all(told) else []
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "tailrace").partition(".")[0]
        return [] if missing == "tailrace" else [f"{missing} is not installed - {install_hint(extra)}"]
    return [str(error)] if isinstance(error, TailraceError) else []
