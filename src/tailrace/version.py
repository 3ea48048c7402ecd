"""Version of the package.

The build reads the version from this file. The package does not read it with ``importlib.metadata``, whose imports
(``email``, ``zipfile``) would delay the first connection.
"""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
