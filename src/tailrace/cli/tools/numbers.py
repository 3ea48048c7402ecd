"""Parsing of numbers in arguments of commands."""

from __future__ import annotations

import argparse

__all__ = ["positive_integer"]


def positive_integer(text: str) -> int:
    """Parse a positive integer.

    Raises:
        argparse.ArgumentTypeError: ``text`` is not a positive integer.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)
