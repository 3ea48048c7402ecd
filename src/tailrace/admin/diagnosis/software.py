"""Facts and findings about the software of this process: Python, packages, compiled decoder and checksums."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version

from tailrace.admin.diagnosis.findings import Finding, Subject
from tailrace.batches.record_batch import HARDWARE
from tailrace.installation import COMPILED, IS_TURNED_OFF

__all__ = ["SoftwareFacts", "software_facts", "software_findings"]


@dataclass(frozen=True, slots=True)
class SoftwareFacts:
    """Software of this process."""

    python: str
    platform: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of tailrace and its required packages; empty for a package that is not installed."""
    is_compiled: bool = True
    """True if records are decoded by the compiled module."""
    is_pure_requested: bool = False
    """True if the variable ``TAILRACE_PURE_PYTHON`` turns the compiled module off."""
    has_fast_checksums: bool = True
    """True if CRC-32C checksums are computed by instructions of the processor."""


def software_findings(facts: SoftwareFacts) -> Iterator[Finding]:
    missing = [name for name, version in facts.packages.items() if not version]
    versions = ", ".join(f"{name} {version}" for name, version in facts.packages.items() if version)
    yield Subject("software").ok("software", f"Python {facts.python} on {facts.platform}; {versions}")
    if missing:
        yield Subject("software").problem(
            "software.packages",
            f"required packages are not installed: {', '.join(missing)}",
            "install them",
            f"python -m pip install {' '.join(missing)}",
        )
    if not facts.is_compiled:
        reason = "TAILRACE_PURE_PYTHON is set" if facts.is_pure_requested else "tailrace._native is not installed"
        yield Subject("decoder").warning(
            "software.decoder",
            f"records are decoded in Python, which takes several times as long: {reason}",
            "unset TAILRACE_PURE_PYTHON" if facts.is_pure_requested else "reinstall tailrace with a C compiler",
            "unset TAILRACE_PURE_PYTHON" if facts.is_pure_requested else "cc --version",
        )
    if not facts.has_fast_checksums:
        yield Subject("checksums").warning(
            "software.checksums",
            "the compiled part of google-crc32c is not installed, so a slower implementation computes CRC-32C",
            "install a wheel of google-crc32c for this platform",
            "python -m pip install --force-reinstall --only-binary :all: google-crc32c",
        )
    if facts.is_compiled and facts.has_fast_checksums:
        yield Subject("decoder").ok(
            "software.decoder",
            "records are decoded by the compiled module, checksums computed by the processor's instructions",
        )


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
