"""Installation hints for optional dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.context_managers import contextmanager

__all__ = ["install_hint", "needs_extra"]


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
