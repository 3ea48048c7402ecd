"""Installation hints for optional dependencies."""

from __future__ import annotations

__all__ = ["install_hint"]


def install_hint(extras: str) -> str:
    """Return the commands that install ``extras`` (comma-separated) from a clone and from a wheel."""
    return f"pip install '.[{extras}]' in a clone of tailrace, or 'path/to/tailrace.whl[{extras}]' for a wheel"
