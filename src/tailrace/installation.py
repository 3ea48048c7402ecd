"""Version of the package, optional packages, and classes of the compiled module ``tailrace._native``.

The build reads the version from this file. The package does not read it with ``importlib.metadata``, whose imports
(``email``, ``zipfile``) would delay the first connection.

The compiled module is absent if the package was built without a compiler, and is not used if the environment variable
``TAILRACE_PURE_PYTHON`` is set. In both cases ``new_buffer`` is ``bytearray``, and its other names are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from tailrace.context_managers import contextmanager

if TYPE_CHECKING:
    from tailrace._native import BatchDecoder, HandlerRun, RecordIterator, RecordWriter

__all__ = [
    "COMPILED",
    "IS_TURNED_OFF",
    "VERSION",
    "batch_decoder",
    "handler_run",
    "install_hint",
    "murmur2",
    "needs_extra",
    "new_buffer",
    "record_iterator",
    "record_writer",
]

# ---- compiled module -------------------------------------------------------------------------------------------------

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
record_writer: type[RecordWriter] | None = getattr(_module, "RecordWriter", None)
record_iterator: type[RecordIterator] | None = getattr(_module, "RecordIterator", None)
handler_run: type[HandlerRun] | None = getattr(_module, "HandlerRun", None)
murmur2: Callable[[bytes], int] | None = getattr(_module, "murmur2", None)
new_buffer: Callable[[int], bytearray] = getattr(_module, "new_buffer", bytearray)
"""Function that returns a bytearray of a given size; the compiled function leaves its bytes uninitialized."""


# ---- optional packages -----------------------------------------------------------------------------------------------


def install_hint(extras: str) -> str:
    """Return the commands that install ``extras`` (comma-separated) from a clone and from a wheel."""
    return f"pip install '.[{extras}]' in a clone of tailrace, or 'path/to/tailrace.whl[{extras}]' for a wheel"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Add the command that installs ``extra`` to the error of an import in the context.

    Raises:
        ModuleNotFoundError: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "tailrace"}:
            raise
        raise ModuleNotFoundError(f"{error.name} is not installed - {install_hint(extra)}", name=error.name) from None


# ---- version ---------------------------------------------------------------------------------------------------------

VERSION = "0.1.0.dev0"
