"""Facts about the software of this process."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from tailrace.batches.checksum import HARDWARE
from tailrace.compiled import COMPILED, IS_TURNED_OFF
from tailrace.core.diagnosis.software import SoftwareFacts

__all__ = ["software_facts"]


def software_facts() -> SoftwareFacts:
    """Return the versions of Python and of the required packages, and the implementations in use."""
    try:
        required = [one for one in requires("tailrace") or () if "extra ==" not in one]
    except PackageNotFoundError:  # run from a source tree that was never installed
        required = []
    names = ["tailrace", *(found[0] for one in required if (found := re.match(r"[\w.-]+", one)))]
    return SoftwareFacts(
        f"{platform.python_version()} ({platform.python_implementation()})",
        f"{platform.system()} {platform.machine()}",
        {name: _version(name) for name in names},
        is_compiled=COMPILED,
        is_pure_requested=IS_TURNED_OFF,
        has_fast_checksums=HARDWARE,
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source" if name == "tailrace" else ""
