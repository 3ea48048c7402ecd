"""Class data sharing, which halves the start time of a broker's JVM (JEP 350, JEP 514).

A JVM writes the archive on a clean exit, and writing takes seconds. Therefore only the second broker that is started on
a machine writes the archive. A JVM ignores an archive that does not match its version, options and class path.
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

_READING = {".aot": "-XX:AOTCache=", ".jsa": "-XX:SharedArchiveFile="}
_WRITING = {".aot": "-XX:AOTCacheOutput=", ".jsa": "-XX:ArchiveClassesAtExit="}
_FIRST_WITH_AOT = 25
_SEEN, _WRITTEN_NOW, _CANNOT = "seen", "written now", "cannot"
_WRITING_S = 3600


class ClassDataArchive:
    """Cached archive for one Java, class path and set of options, and a record of attempts to write the archive."""

    def __init__(self, java: Path, options: Sequence[str], class_path: Sequence[Path]) -> None:
        java = java.resolve()
        modified = java.stat().st_mtime_ns if java.exists() else None
        key = [str(java), modified, *options, *map(str, class_path)]
        self._java = java
        self._cached = cache_folder() / "classes" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]

    def to_read(self) -> list[str]:
        """Return the JVM options for reading the archive; empty if there is no archive."""
        files = [(self._cached.with_suffix(suffix), option) for suffix, option in _READING.items()]
        return [f"{option}{file}" for file, option in files if file.exists()]

    def to_write(self, new: Path) -> list[str]:
        """Return the JVM options for writing the archive to ``new`` on exit; empty if this JVM need not write it."""
        state = self._cached.with_suffix(".state")
        with contextlib.suppress(OSError):  # without a cache, the start is slower but works
            state.parent.mkdir(parents=True, exist_ok=True)
            stored = state.read_text() if state.exists() else ""
            is_given_up = stored == _WRITTEN_NOW and time.time() - state.stat().st_mtime > _WRITING_S
            if stored == _SEEN or is_given_up:
                state.write_text(_WRITTEN_NOW)
                suffix = ".aot" if (major_version(self._java) or 0) >= _FIRST_WITH_AOT else ".jsa"
                return [f"{_WRITING[suffix]}{new.with_suffix(suffix)}"]
            if not stored:
                state.write_text(_SEEN)
        return []

    def keep(self, new: Path) -> None:
        """Cache the archive that a JVM wrote on a clean exit; if it wrote none, no further JVM is to write one."""
        written = [file for suffix in _READING if (file := new.with_suffix(suffix)).exists()]
        with contextlib.suppress(OSError):
            for file in written:
                copy = self._cached.with_name(f"{self._cached.name}.{secrets.token_hex(4)}")
                shutil.copyfile(file, copy)
                copy.replace(self._cached.with_suffix(file.suffix))
            self._cached.with_suffix(".state").write_text(_SEEN if written else _CANNOT)

    def forget(self) -> None:
        """Remove the archive, because a JVM that read it crashed."""
        for suffix in _READING:
            self._cached.with_suffix(suffix).unlink(missing_ok=True)
