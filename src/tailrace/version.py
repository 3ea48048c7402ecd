"""Version of the package; the build reads it from this file.

The version is not read by ``importlib.metadata``, whose imports (``email``, ``zipfile``) would delay the first
connection.
"""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
