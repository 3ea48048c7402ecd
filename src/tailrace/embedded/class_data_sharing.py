"""A broker starts in half the time when its JVM finds the classes as the last one left them (JEP 350, JEP 514).

A JVM writes them when it ends in order, which takes seconds. So it is done once, by the second broker that a
machine starts: who starts only one never waits for it. A file that does not fit is passed over by the JVM.
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
    """The file of one Java, one class path and one set of options, and whose turn it is to write it."""

    def __init__(self, java: Path, options: Sequence[str], class_path: Sequence[Path]) -> None:
        java = java.resolve()
        made = java.stat().st_mtime_ns if java.exists() else None
        alike = [str(java), made, *options, *map(str, class_path)]
        self._java = java
        self._kept = cache_folder() / "classes" / hashlib.sha256(json.dumps(alike).encode()).hexdigest()[:32]

    def to_read(self) -> list[str]:
        """Options for a JVM to read the file; none when there is no file."""
        files = [(self._kept.with_suffix(suffix), option) for suffix, option in _READING.items()]
        return [f"{option}{file}" for file, option in files if file.exists()]

    def to_write(self, new: Path) -> list[str]:
        """Options for a JVM to write ``new`` when it ends, if this one is to."""
        state = self._kept.with_suffix(".state")
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, no more
            state.parent.mkdir(parents=True, exist_ok=True)
            said = state.read_text() if state.exists() else ""
            is_given_up = said == _WRITTEN_NOW and time.time() - state.stat().st_mtime > _WRITING_S
            if said == _SEEN or is_given_up:
                state.write_text(_WRITTEN_NOW)
                suffix = ".aot" if (major_version(self._java) or 0) >= _FIRST_WITH_AOT else ".jsa"
                return [f"{_WRITING[suffix]}{new.with_suffix(suffix)}"]
            if not said:
                state.write_text(_SEEN)
        return []

    def keep(self, new: Path) -> None:
        """Take what a JVM that ended in order has written; if it wrote nothing, it never will."""
        written = [file for suffix in _READING if (file := new.with_suffix(suffix)).exists()]
        with contextlib.suppress(OSError):
            for file in written:
                copy = self._kept.with_name(f"{self._kept.name}.{secrets.token_hex(4)}")
                shutil.copyfile(file, copy)
                copy.replace(self._kept.with_suffix(file.suffix))
            self._kept.with_suffix(".state").write_text(_SEEN if written else _CANNOT)

    def forget(self) -> None:
        """Remove the file: a JVM that read it has crashed."""
        for suffix in _READING:
            self._kept.with_suffix(suffix).unlink(missing_ok=True)
