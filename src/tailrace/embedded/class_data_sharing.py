"""Class data sharing, which halves the start time of a broker's JVM (JEP 350, JEP 514).

A JVM writes an archive of its loaded classes on a clean exit, and later JVMs read this archive. Writing takes seconds,
so the first broker that is started on a machine does not write it; the second does. A JVM ignores an archive that does
not match its version, options and class path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from tailrace.embedded.jars import cache_folder
from tailrace.embedded.java import major_version

__all__ = ["ClassDataArchive"]

_READ_OPTIONS = {".aot": "-XX:AOTCache=", ".jsa": "-XX:SharedArchiveFile="}
_WRITE_OPTIONS = {".aot": "-XX:AOTCacheOutput=", ".jsa": "-XX:ArchiveClassesAtExit="}
_FIRST_WITH_AOT = 25
"""First feature release of Java that writes an archive with ``-XX:AOTCacheOutput``."""
_MAY_WRITE, _IS_WRITING, _CANNOT_WRITE = "seen", "written now", "cannot"
"""Contents of the state file: the next JVM may write the archive; a JVM is to write it on exit; a JVM failed to do so.

The file is missing before the first start of a JVM.
"""
_WRITING_S = 3600
"""Time after which a JVM that is to write the archive is taken to have ended without writing it."""


class ClassDataArchive:
    """Cached archive for one Java, class path and set of options, with the state of its writing."""

    def __init__(self, java: Path, options: Sequence[str], class_path: Sequence[Path]) -> None:
        java = java.resolve()
        modified = java.stat().st_mtime_ns if java.exists() else None
        key = [str(java), modified, *options, *map(str, class_path)]
        self._java = java
        self._cached = cache_folder() / "classes" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]

    def read_options(self) -> list[str]:
        """Return the JVM options to read the archive; empty if there is no archive."""
        files = [(self._cached.with_suffix(suffix), option) for suffix, option in _READ_OPTIONS.items()]
        return [f"{option}{file}" for file, option in files if file.exists()]

    def write_options(self, new: Path) -> list[str]:
        """Return the JVM options to write the archive to ``new`` on exit, and store that a JVM writes it.

        The options are empty for the first JVM, while another JVM is to write the archive, and after a failure. Call
        ``keep`` after the exit of the JVM.
        """
        state = self._cached.with_suffix(".state")
        with contextlib.suppress(OSError):  # Without an archive, brokers start slower.
            state.parent.mkdir(parents=True, exist_ok=True)
            stored = state.read_text() if state.exists() else ""
            is_given_up = stored == _IS_WRITING and time.time() - state.stat().st_mtime > _WRITING_S
            if stored == _MAY_WRITE or is_given_up:
                state.write_text(_IS_WRITING)
                suffix = ".aot" if (major_version(self._java) or 0) >= _FIRST_WITH_AOT else ".jsa"
                return [f"{_WRITE_OPTIONS[suffix]}{new.with_suffix(suffix)}"]
            if not stored:
                state.write_text(_MAY_WRITE)
        return []

    def keep(self, new: Path) -> None:
        """Cache the archive that a JVM wrote to ``new``; if it wrote none, later JVMs do not try to write one."""
        written = [file for suffix in _READ_OPTIONS if (file := new.with_suffix(suffix)).exists()]
        with contextlib.suppress(OSError):
            for file in written:
                copy = self._cached.with_name(f"{self._cached.name}.{secrets.token_hex(4)}")
                shutil.copyfile(file, copy)
                copy.replace(self._cached.with_suffix(file.suffix))
            self._cached.with_suffix(".state").write_text(_MAY_WRITE if written else _CANNOT_WRITE)

    def forget(self) -> None:
        """Remove the archive, because a JVM that read it crashed."""
        for suffix in _READ_OPTIONS:
            self._cached.with_suffix(suffix).unlink(missing_ok=True)
