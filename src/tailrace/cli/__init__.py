"""The command line: ``tailrace COMMAND``.

``entry`` finds the command and prints its errors. Each command is a module or package with two functions:
``arguments(parser)`` adds its options, and ``run(options)`` runs it and returns the exit code, or is a coroutine
function that does. The module is imported only when the command is called. It imports asyncio, msgspec, rich and the
clients inside functions, so that ``--help`` starts fast; packages beside it may import them at once.
"""

from tailrace.cli.entry import main

__all__ = ["main"]
