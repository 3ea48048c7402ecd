"""Broker as a child process, and its data folder.

Kafka's storage tool formats the folder in a JVM of its own, which would take a quarter of a broker's start time. Its
output is the file ``bootstrap.checkpoint``, which is the same for all brokers of one version and configuration, and
``meta.properties``, which contains ids. The first file is cached, and the second one is written without the tool.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.embedded.jars import cache_folder, major_version
from tailrace.embedded.settings import PASSWORD, USERNAME, Ports
from tailrace.errors import KafkaServerError

__all__ = ["BrokerNode", "ClassDataArchive", "checkpoint_cache_path", "format_from_cache", "new_id", "store_checkpoint"]

# ---- data folder -----------------------------------------------------------------------------------------------------

_CHECKPOINT, _META = "bootstrap.checkpoint", "meta.properties"


def new_id() -> str:
    """Return a random id in Kafka's format: 16 bytes in URL-safe base64, without a dash at the beginning."""
    return base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()


def checkpoint_cache_path(version: str, scram: str | None, config: Mapping[str, str | float]) -> Path:
    """Return the path of the cached checkpoint for a version, SCRAM mechanism and configuration; it may not exist."""
    key = [version, scram, USERNAME, PASSWORD, sorted((key, str(value)) for key, value in config.items())]
    return cache_folder() / "formatted" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def format_from_cache(cached: Path, data: Path, node_id: int, cluster_id: str) -> bool:
    """Format the folder ``data`` with the cached checkpoint, and return True; return False if it does not exist."""
    if not cached.exists():
        return False
    data.mkdir(parents=True)
    shutil.copyfile(cached, data / _CHECKPOINT)
    meta = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    (data / _META).write_text("".join(f"{key}={value}\n" for key, value in meta.items()))
    return True


def store_checkpoint(data: Path, cached: Path) -> None:
    """Copy the checkpoint from the folder ``data`` to ``cached``, unless the tool has written unexpected files."""
    if {path.name for path in data.iterdir()} != {_CHECKPOINT, _META}:
        return
    with contextlib.suppress(OSError):  # Without the cached file, brokers start slower.
        cached.parent.mkdir(parents=True, exist_ok=True)
        copy = cached.with_name(f"{cached.name}.{secrets.token_hex(4)}")
        shutil.copyfile(data / _CHECKPOINT, copy)
        copy.replace(cached)


# ---- class data sharing, which halves the start time of a broker's JVM (JEP 350, JEP 514) ----------------------------

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


# ---- broker ----------------------------------------------------------------------------------------------------------

_STOP_TIMEOUT_S = 20
_FORMAT_TIMEOUT_S = 120
_CRASH_EXIT_CODES = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL}
_ERROR_LINE = re.compile(r"\b(ERROR|FATAL|Caused by:|Exception in thread|OutOfMemoryError)|^[\w.$]+(Exception|Error)\b")
_JVM = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class BrokerNode:
    """Broker process, with methods that cause faults: ``stop``, ``kill``, ``pause`` and ``resume``."""

    def __init__(self, node_id: int, ports: Ports, folder: Path, java: Path, jars: list[Path]) -> None:
        self.node_id = node_id
        self.ports = ports
        self.folder = folder
        self._command = [str(java), *_JVM, f"-Djava.io.tmpdir={folder}", "-cp", os.pathsep.join(map(str, jars))]
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._log_begin = 0
        self._class_data = ClassDataArchive(java, _JVM, jars)
        self._writes_class_data = False

    def __repr__(self) -> str:
        state = "stopped" if not self.is_running else "paused" if self._paused else "running"
        return f"<BrokerNode {self.node_id} {self.address} {state}>"

    @property
    def address(self) -> str:
        """Advertised host and port."""
        return f"127.0.0.1:{self.ports.advertised}"

    @property
    def is_running(self) -> bool:
        """True if the process is alive, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """True if the process is paused."""
        return self._paused

    @property
    def is_listening(self) -> bool:
        """True if the client listener is open; a broker may join the cluster before it opens this listener.

        A connection to the port would not prove that the broker listens, because another process may use the port.
        """
        import psutil  # noqa: PLC0415 - an extra

        if (pid := self.pid) is None:
            return False
        try:
            sockets = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            return self.is_running  # This user may not list the sockets, so assume that the listener is open.
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == self.ports.client for one in sockets)

    @property
    def pid(self) -> int | None:
        """Process id; None if the process is not alive."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def log_file(self) -> Path:
        """Path of the broker's log file."""
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        """Path of the broker's data folder."""
        return self.folder / "data"

    def format(self, properties: str, cluster_id: str, scram: str | None, cached: Path) -> None:
        """Write the configuration and format the data folder.

        Args:
            properties: configuration of the broker.
            cluster_id: id of the cluster.
            scram: SCRAM mechanism of the user to create; None for no user.
            cached: path from ``checkpoint_cache_path``. If the file exists, the folder is formatted with it. Otherwise
                Kafka's storage tool formats the folder, and its output is copied to this path.

        Raises:
            KafkaServerError: the storage tool failed, usually because the configuration is invalid.
        """
        self.folder.mkdir(parents=True)
        self._properties.write_text(properties)
        if format_from_cache(cached, self.data, self.node_id, cluster_id):
            return
        command = [
            *self._command,
            *self._class_data.read_options(),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(self._properties),
        ]
        if scram is not None:
            command += ["--add-scram", f"{scram}=[name={USERNAME},password={PASSWORD}]"]
        try:
            with self.log_file.open("ab") as log:
                subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=_FORMAT_TIMEOUT_S, check=True)  # noqa: S603
        except subprocess.SubprocessError as error:
            raise KafkaServerError(
                f"could not format the data folder of broker {self.node_id}. Its log:\n{self.complaint()}"
            ) from error
        store_checkpoint(self.data, cached)

    def start(self, *, may_write_classes: bool = False) -> None:
        """Start the process, unless it is running; do not wait until the broker is ready.

        Args:
            may_write_classes: True if the process may write a class data archive when it exits, which takes seconds.
        """
        if self.is_running:
            return
        options = self._class_data.read_options()
        self._writes_class_data = False
        if may_write_classes and not options:
            options = self._class_data.write_options(self._new_class_data)
            self._writes_class_data = bool(options)
        with self.log_file.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - command of this module
                [*self._command, *options, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must reach only the parent, which then stops the broker.
            )
        self._paused = False

    def stop(self) -> None:
        """Stop the broker (SIGTERM), and kill it (SIGKILL) after 20 seconds.

        A broker that is stopped transfers the leadership of its partitions and closes its logs.
        """
        self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), so that it ends without a clean shutdown."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Stop the broker if it will write a class data archive and is not paused; kill it otherwise."""
        if self._writes_class_data and not self._paused:
            self.stop()
        else:
            self.kill()

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): its sockets stay open, but it answers no requests."""
        if self.is_running and not self._paused:
            self._signal(signal.SIGSTOP)
            self._paused = True
            if self._process is not None and hasattr(os, "waitid"):
                # Wait until all threads of the broker are stopped. WNOWAIT keeps the exit status for later calls.
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume the broker (SIGCONT)."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def complaint(self, lines: int = 20) -> str:
        """Return up to ``lines`` lines of the log since the last start: the first errors, or else the last lines."""
        with contextlib.suppress(OSError):
            written = self.log_file.read_bytes()[self._log_begin :].decode(errors="replace").splitlines()
            wrong = [line for line in written if _ERROR_LINE.search(line)]
            return "\n".join(wrong[:lines] or written[-lines:])
        return "(no log)"

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, number)

    @property
    def _new_class_data(self) -> Path:
        return self.folder / "classes"

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self._process.poll() in _CRASH_EXIT_CODES:
            self._class_data.forget()
        self._signal(number)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # A broker without a quorum of controllers waits for minutes before it exits.
            self._signal(signal.SIGKILL)
            self._process.wait(_STOP_TIMEOUT_S)
        if self._writes_class_data and self._process.returncode >= 0:
            self._class_data.keep(self._new_class_data)
        self._writes_class_data = False
        self._process = None
        self._paused = False
