"""Nothing stays behind: folders and processes of a run end with it, however it ends.

A run is one Python process that started brokers; it has one folder, with a note of whose it is. A clean end removes
both; SIGTERM and SIGHUP are turned into a clean end while a server runs; what a SIGKILL left is found by the next run
and reaped: a folder whose owner is gone, and every broker whose files are in it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

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
_MAKING_S = 60
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_open_servers: list[Callable[[], None]] = []


def runs_folder() -> Path:
    """Where this user's runs are."""
    user = os.getuid() if hasattr(os, "getuid") else "windows"
    return Path(tempfile.gettempdir(), f"penstock-kafka-{user}")


def new_run_folder() -> Path:
    """A folder of this process's own, after what others left has been reaped."""
    import psutil  # noqa: PLC0415 - an extra

    reap()
    run = runs_folder() / f"{os.getpid()}-{secrets.token_hex(4)}"
    while True:
        runs_folder().mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another run was the last and took the folder with it
            run.mkdir(mode=0o700)
            break
    (run / _OWNER).write_text(json.dumps({"pid": os.getpid(), "created": psutil.Process().create_time()}))
    return run


def remove_run_folder(run: Path) -> None:
    """Remove the folder; processes must have ended."""
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):
        run.parent.rmdir()  # if this was the last


def reap() -> list[Path]:
    """End the processes and remove the folders of runs whose owner is gone; gives those folders."""
    with contextlib.suppress(OSError):
        abandoned = [run for run in runs_folder().iterdir() if run.is_dir() and not _is_owned(run)]
        for run in abandoned:
            _kill_brokers_of(run)
            remove_run_folder(run)
        return abandoned
    return []


def on_exit(close: Callable[[], None]) -> Callable[[], None]:
    """Have ``close`` called if the process ends first, by a signal too; calling what is returned takes it back."""
    end_on_signals()
    _open_servers.append(close)

    def forget() -> None:
        with contextlib.suppress(ValueError):
            _open_servers.remove(close)
        leave_signals_alone()

    return forget


def end_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into an orderly exit, where nobody else handles them and this is the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def leave_signals_alone() -> None:
    """Take that back, when no server is open."""
    if not _open_servers and threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@atexit.register
def _close_open_servers() -> None:
    for close in _open_servers[:]:
        close()


if hasattr(os, "register_at_fork"):
    # A child has its parent's list, but the servers are not its own to end.
    os.register_at_fork(after_in_child=_open_servers.clear)


def _is_owned(run: Path) -> bool:
    import psutil  # noqa: PLC0415 - an extra

    try:
        owner = json.loads((run / _OWNER).read_text())
        process = psutil.Process(owner["pid"])
        is_same = abs(process.create_time() - float(owner["created"])) < 1
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, TypeError):
        # No note: a run that is being made just now, or one that was killed in that moment.
        return _age_s(run) < _MAKING_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _age_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _kill_brokers_of(run: Path) -> None:
    import psutil  # noqa: PLC0415 - an extra

    # By the folder for temporary files that each broker is given, not by any mention of it: somebody may be reading
    # a log in there.
    mark = f"-Djava.io.tmpdir={run}{os.sep}"
    doomed = []
    for process in psutil.process_iter(["cmdline"]):
        if any(argument.startswith(mark) for argument in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
                doomed.append(process)
    psutil.wait_procs(doomed, timeout=10)
