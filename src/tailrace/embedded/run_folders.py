"""Folders of runs, and removal of folders and processes that runs left behind.

A run is the start of a cluster by a Python process. Each run has a folder with the files of its brokers and a file that
identifies the process. When the process exits, or receives SIGTERM or SIGHUP while brokers run, the brokers are stopped
and the folder is removed. After SIGKILL, the next run removes the folder and kills the brokers.

The parent folder of a user's runs has a predictable name in the temporary directory, to which all users can write. The
parent folder is used only if it is a real directory of this user with mode 0700. Otherwise it may have been created by
another user, and a parent folder with a random name is used instead. A folder without the file that identifies the
process is removed only if it is empty.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tailrace import signals

__all__ = [
    "end_on_signals",
    "leave_signals_alone",
    "new_run_folder",
    "on_exit",
    "reap",
    "remove_run_folder",
    "runs_folder",
]

_OWNER = "owner.json"
"""File in the folder of a run that identifies the process."""
_CREATING_S = 60
"""Age after which a folder without ``_OWNER`` is not being created anymore."""
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_open_servers: list[Callable[[], None]] = []
"""Functions that stop the clusters of this process."""


def runs_folder() -> Path:
    """Return the preferred parent folder of this user's runs, which may not exist or may belong to another user."""
    return Path(tempfile.gettempdir(), _folder_name())


def new_run_folder() -> Path:
    """Create the folder of this run, after removing the folders that ended runs left behind."""
    import psutil  # noqa: PLC0415 - an extra

    reap()
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    parent = runs_folder()
    while True:
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        if os.path.lexists(parent) and not _is_private(parent):
            parent = Path(tempfile.mkdtemp(prefix=f"{_folder_name()}-"))
        run = parent / name
        with contextlib.suppress(FileNotFoundError):  # Another run has just removed the parent folder.
            run.mkdir(mode=0o700)
            break
    (run / _OWNER).write_text(json.dumps({"pid": os.getpid(), "created": psutil.Process().create_time()}))
    return run


def remove_run_folder(run: Path) -> None:
    """Remove the folder of a run whose processes have ended."""
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):
        run.parent.rmdir()  # This fails while the parent has folders of other runs.


def reap() -> list[Path]:
    """Kill the brokers and remove the folders of runs whose Python process has ended; return the folders."""
    abandoned: list[Path] = []
    for parent in Path(tempfile.gettempdir()).glob(f"{_folder_name()}*"):
        with contextlib.suppress(OSError):
            if _is_private(parent):
                abandoned += [run for run in parent.iterdir() if _is_private(run) and _is_abandoned(run)]
    for run in abandoned:
        _kill_brokers_of(run)
        remove_run_folder(run)
    return abandoned


def on_exit(close: Callable[[], None]) -> Callable[[], None]:
    """Register ``close`` to be called when the process exits or receives SIGTERM or SIGHUP.

    Return a function that unregisters it.
    """
    end_on_signals()
    _open_servers.append(close)

    def unregister() -> None:
        with contextlib.suppress(ValueError):
            _open_servers.remove(close)
        leave_signals_alone()

    return unregister


def end_on_signals() -> None:
    """Exit the process at SIGTERM and SIGHUP unless they have other handlers; do nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        signals.exit_on_signals(_SIGNALS)


def leave_signals_alone() -> None:
    """Undo ``end_on_signals`` unless a cluster is registered with ``on_exit``."""
    if not _open_servers and threading.current_thread() is threading.main_thread():
        signals.leave_signals_alone(_SIGNALS)


@atexit.register
def _close_open_servers() -> None:
    for close in _open_servers[:]:
        close()


if hasattr(os, "register_at_fork"):
    # A forked child must not stop the brokers of its parent.
    os.register_at_fork(after_in_child=_open_servers.clear)


def _folder_name() -> str:
    return f"tailrace-kafka-{os.getuid() if hasattr(os, 'getuid') else 'windows'}"


def _is_private(folder: Path) -> bool:
    """Return True for a real directory of this user that no other user may enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)


def _is_abandoned(run: Path) -> bool:
    import psutil  # noqa: PLC0415 - an extra

    try:
        owner = json.loads((run / _OWNER).read_text())
        process = psutil.Process(owner["pid"])
        is_same = abs(process.create_time() - float(owner["created"])) < 1
        return not is_same or process.status() == psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, TypeError):
        # The folder is being created, or the process was killed before it wrote the file.
        if _age_s(run) > _CREATING_S:
            with contextlib.suppress(OSError):
                run.rmdir()
        return False
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _age_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _kill_brokers_of(run: Path) -> None:
    import psutil  # noqa: PLC0415 - an extra

    # Match an option that only brokers have, because other processes may have the folder in their arguments, too.
    broker_option = f"-Djava.io.tmpdir={run}{os.sep}"
    killed = []
    for process in psutil.process_iter(["cmdline"]):
        if any(argument.startswith(broker_option) for argument in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=10)
