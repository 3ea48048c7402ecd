"""Implementations of decoding and checksums in use.

Their modules are imported while a consumer connects, because they take a tenth of a second; nothing is imported here.
"""

from __future__ import annotations

import sys
from typing import Literal

__all__ = ["checksum_in_use", "decoder_in_use"]


def decoder_in_use() -> Literal["compiled", "python", "unknown"]:
    """Return the decoder of record batches."""
    is_compiled = getattr(sys.modules.get("tailrace.batches.record_batch"), "COMPILED", None)
    return "unknown" if is_compiled is None else "compiled" if is_compiled else "python"


def checksum_in_use() -> Literal["hardware", "software", "unknown"]:
    """Return the implementation of CRC-32C."""
    is_hardware = getattr(sys.modules.get("tailrace.batches.checksum"), "HARDWARE", None)
    return "unknown" if is_hardware is None else "hardware" if is_hardware else "software"
