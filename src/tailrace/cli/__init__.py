"""The command line: ``tailrace COMMAND``.

Look in ``entry`` for how a command is found and how its errors are told; each command is a module (or a folder) of
its own, with ``arguments(parser)`` and ``run(options) -> exit code``, imported when it is called and not before.
"""

from tailrace.cli.entry import main

__all__ = ["main"]
