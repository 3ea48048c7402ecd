"""Options that select the log of a command that runs until a signal."""

from __future__ import annotations

import argparse

__all__ = ["add_log_options"]


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="log level on stderr (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=["console", "json"],
        default="console",
        help="lines of text or of JSON on stderr (default: %(default)s)",
    )
