"""The command line: ``tailrace COMMAND``.

``entry`` finds the command and prints its errors. Each command is a module or package with two functions:
``arguments(parser)`` adds its options, and ``run(options)`` runs it and returns the exit code. It is imported only when
the command is called.
"""

from tailrace.cli.entry import main

__all__ = ["main"]
