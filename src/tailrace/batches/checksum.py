"""CRC-32C (Castagnoli, RFC 3720), the checksum of record batches of format 2."""

from __future__ import annotations

import warnings
from collections.abc import Callable

__all__ = ["HARDWARE", "crc32c"]

_CHUNK = 1 << 16
"""Number of bytes that are copied at a time; google-crc32c accepts only ``bytes``, so the content must be copied.

A copy of this size fits into the processor's cache.
"""


def _hardware_extend() -> Callable[[int, bytes], int] | None:
    """Return google-crc32c's compiled function; None if google-crc32c is missing or has only its Python version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            import google_crc32c  # noqa: PLC0415 - the import warns if only the Python version is installed
    except ImportError:
        return None
    return google_crc32c.extend if google_crc32c.implementation == "c" else None


_extend = _hardware_extend()

HARDWARE = _extend is not None
"""True if google-crc32c computes the checksums, with the processor's CRC instructions."""


def crc32c(content: memoryview) -> int:
    """Return the checksum of ``content``."""
    if _extend is None:
        # aiokafka is imported only if it is needed, because the import takes 0.1 s.
        from aiokafka.record.util import calc_crc32c  # noqa: PLC0415

        return int(calc_crc32c(content))  # type: ignore[arg-type]  # it takes any buffer
    if len(content) <= _CHUNK:
        return _extend(0, bytes(content))
    checksum = 0
    for start in range(0, len(content), _CHUNK):
        checksum = _extend(checksum, bytes(content[start : start + _CHUNK]))
    return checksum
