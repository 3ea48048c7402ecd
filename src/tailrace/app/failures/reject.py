"""The one exception that a handler raises as a word."""

from __future__ import annotations

__all__ = ["Reject"]


class Reject(Exception):  # noqa: N818 - a handler says it: raise Reject("negative total")
    """This record will never do: no other attempt is made, it goes where failed records go, with these words."""
