"""Implementations that decode record batches and compute checksums."""

from __future__ import annotations

import sys
from typing import Literal

from tailrace.compiled import COMPILED

__all__ = ["checksum_in_use", "decoder_in_use"]


def decoder_in_use() -> Literal["compiled", "python"]:
    """Return the decoder of record batches."""
    return "compiled" if COMPILED else "python"


def checksum_in_use() -> Literal["hardware", "software", "unknown"]:
    """Return the implementation of CRC-32C; "unknown" before the first connection, which imports it."""
    is_hardware = getattr(sys.modules.get("tailrace.batches.checksum"), "HARDWARE", None)
    return "unknown" if is_hardware is None else "hardware" if is_hardware else "software"
