"""Classes of the compiled module ``tailrace._native``.

The compiled module is absent if the package was built without a compiler, and is not used if the environment variable
``TAILRACE_PURE_PYTHON`` is set. In both cases ``batch_decoder``, ``record_iterator`` and ``handler_run`` are None, and
``new_buffer`` is ``bytearray``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace._native import BatchDecoder, HandlerRun, RecordIterator

__all__ = ["COMPILED", "IS_TURNED_OFF", "batch_decoder", "handler_run", "new_buffer", "record_iterator"]

IS_TURNED_OFF = bool(os.environ.get("TAILRACE_PURE_PYTHON"))
"""True if ``TAILRACE_PURE_PYTHON`` is set."""


def _load() -> ModuleType | None:
    if IS_TURNED_OFF:
        return None
    try:
        return import_module("tailrace._native")
    except ImportError:
        return None


_module = _load()

COMPILED = _module is not None
"""True if the compiled module is used."""

batch_decoder: type[BatchDecoder] | None = getattr(_module, "BatchDecoder", None)
record_iterator: type[RecordIterator] | None = getattr(_module, "RecordIterator", None)
handler_run: type[HandlerRun] | None = getattr(_module, "HandlerRun", None)
new_buffer: Callable[[int], bytearray] = getattr(_module, "new_buffer", bytearray)
"""Function that returns a bytearray of a given size; the compiled function leaves its bytes uninitialized."""
