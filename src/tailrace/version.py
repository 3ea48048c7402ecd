"""Version of the package, from which the build takes its own.

A constant, because ``importlib.metadata`` imports e-mail and archives, which a connection would wait for.
"""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
