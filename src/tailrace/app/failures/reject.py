"""Exception with which a handler rejects a record."""

from __future__ import annotations

__all__ = ["Reject"]


class Reject(Exception):  # noqa: N818 - reads well in handlers: raise Reject("negative total")
    """Raised by a handler to reject a record, which then fails for good without another attempt.

    The record's dead letter contains the message of the exception.
    """
