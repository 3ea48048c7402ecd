"""The command line: ``tailrace COMMAND``.

``entry`` finds the command and reports its errors. Each command is a module or package with ``arguments(parser)`` and
``run(options) -> exit code``, and is imported only when the command is called.
"""

from tailrace.cli.entry import main

__all__ = ["main"]
