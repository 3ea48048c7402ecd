"""Log options of commands that run until a signal."""

from __future__ import annotations

import argparse

__all__ = ["add_log_options"]


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level to log (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=["console", "json"],
        default="console",
        help="format of the log on stderr (default: %(default)s)",
    )
