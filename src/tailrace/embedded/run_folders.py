"""Folders with the files of embedded brokers, and cleanup after Python processes that were killed.

A run is one start of a cluster by a Python process. Each run has a folder with the files of its brokers and with the
file ``owner.json``, which identifies the Python process. When this process exits, or receives SIGTERM or SIGHUP while
brokers run, the brokers are stopped and the folder is removed. If the process is killed (SIGKILL), the next run kills
the brokers and removes the folder.

The parent folder of a user's runs has a predictable name in the temporary directory, to which all users can write. It
is used only if it is a real directory of this user that no other user may enter. Otherwise another user may have
created it, and a parent folder with a random name is used instead. A folder without ``owner.json`` is removed only if
it is empty.
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
    "install_signal_handlers",
    "new_run_folder",
    "on_exit",
    "reap",
    "remove_run_folder",
    "remove_signal_handlers",
    "runs_folder",
]

_OWNER = "owner.json"
"""Name of the file that identifies the Python process of a run."""
_INCOMPLETE_S = 60
"""Age after which an empty folder without ``_OWNER`` is removed; a younger one may be about to get the file."""
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_close_functions: list[Callable[[], None]] = []
"""Functions that stop the clusters of this process, registered with ``on_exit``."""


def runs_folder() -> Path:
    """Return the parent folder with the predictable name, which may not exist or may belong to another user."""
    return Path(tempfile.gettempdir(), _folder_name())


def new_run_folder() -> Path:
    """Call ``reap``, and create the folder of a new run."""
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
    """Remove the folder of a run whose brokers have ended, and the parent folder if it is empty then."""
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):
        run.parent.rmdir()  # This raises OSError while there are other runs.


def reap() -> list[Path]:
    """Kill the brokers and remove the folders of runs whose Python process has ended; return the removed folders."""
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

    The returned function unregisters ``close``.
    """
    install_signal_handlers()
    _close_functions.append(close)

    def unregister() -> None:
        with contextlib.suppress(ValueError):
            _close_functions.remove(close)
        remove_signal_handlers()

    return unregister


def install_signal_handlers() -> None:
    """Exit the process at SIGTERM and SIGHUP unless the program handles them; do nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        signals.exit_on_signals(_SIGNALS)


def remove_signal_handlers() -> None:
    """Undo ``install_signal_handlers``; do nothing while functions are registered, and outside the main thread."""
    if not _close_functions and threading.current_thread() is threading.main_thread():
        signals.undo_exit_on_signals(_SIGNALS)


@atexit.register
def _close_clusters() -> None:
    for close in _close_functions[:]:
        close()


if hasattr(os, "register_at_fork"):
    # A forked child must not stop the brokers of its parent.
    os.register_at_fork(after_in_child=_close_functions.clear)


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
    """Return True if the Python process of a run has ended; remove an old empty folder without ``_OWNER``."""
    import psutil  # noqa: PLC0415 - an extra

    try:
        owner = json.loads((run / _OWNER).read_text())
        process = psutil.Process(owner["pid"])
        is_same = abs(process.create_time() - float(owner["created"])) < 1
        return not is_same or process.status() == psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, TypeError):
        # The file is missing or incomplete: the folder is being created, or its creator was killed.
        if _age_s(run) > _INCOMPLETE_S:
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
