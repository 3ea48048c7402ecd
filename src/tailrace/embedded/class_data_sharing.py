"""Class data sharing, which halves the start time of a broker's JVM (JEP 350, JEP 514).

A JVM can write an archive of its loaded classes on a clean exit, which takes seconds. Later JVMs read this archive. The
first broker that is started on a machine does not write an archive; the second does. A JVM ignores an archive that does
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
"""Contents of the state file.

The next JVM may write the archive; a JVM will write it when it exits; a JVM exited without writing it. The file is
missing before the first start of a JVM.
"""
_WRITING_TIMEOUT_S = 3600
"""Time after which another JVM may write the archive: the first one was probably killed before it wrote the archive."""


class ClassDataArchive:
    """Archive in the cache folder, and a file with its state, for one Java, class path and list of JVM options."""

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
        """Return the options with which a JVM writes the archive to ``new`` on exit, and record this in the state file.

        Return an empty list for the first JVM, if another JVM will write the archive, and if a JVM exited without
        writing it. After the exit of a JVM with these options, call ``keep``.
        """
        state = self._cached.with_suffix(".state")
        with contextlib.suppress(OSError):  # Without an archive, brokers start slower.
            state.parent.mkdir(parents=True, exist_ok=True)
            stored = state.read_text() if state.exists() else ""
            has_timed_out = stored == _IS_WRITING and time.time() - state.stat().st_mtime > _WRITING_TIMEOUT_S
            if stored == _MAY_WRITE or has_timed_out:
                state.write_text(_IS_WRITING)
                suffix = ".aot" if (major_version(self._java) or 0) >= _FIRST_WITH_AOT else ".jsa"
                return [f"{_WRITE_OPTIONS[suffix]}{new.with_suffix(suffix)}"]
            if not stored:
                state.write_text(_MAY_WRITE)
        return []

    def keep(self, new: Path) -> None:
        """Copy the archive that a JVM wrote to ``new`` into the cache; if there is none, later JVMs will write none."""
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
