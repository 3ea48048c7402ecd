"""SOCKS5 and HTTP CONNECT proxies of other projects, in processes of their own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tailrace.embedded.cluster import free_ports

_WITH_LOOP = (
    "import asyncio, runpy; asyncio.set_event_loop(asyncio.new_event_loop());"
    "runpy.run_module('asyncio_socks_server', run_name='__main__', alter_sys=True)"
)
"""Program of asyncio-socks-server, which expects that the main thread has an event loop."""
USER, PASSWORD = "ann", "not-the-s3cret"


class ProxyProcess:
    """Proxy on a port of this host, as a context manager: asyncio-socks-server for SOCKS5, proxy.py for HTTP CONNECT.

    Args:
        kind: "socks5" or "http".
        folder: folder for its files.
        needs_password: True to require ``USER`` and ``PASSWORD``.
    """

    def __init__(self, kind: str, folder: Path, *, needs_password: bool = False) -> None:
        self.kind, self._folder, self._needs_password = kind, folder, needs_password
        (self.port,) = free_ports(1)
        self._log = folder / f"proxy-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, scheme: str | None = None, credentials: str = "") -> str:
        """Return the value of ``proxy_url``."""
        return f"{scheme or self.kind}://{credentials}{'@' if credentials else ''}127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Output of the process, with the hosts that clients asked for."""
        return self._log.read_text()

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        at = (str(self.port), "127.0.0.1")
        if self.kind == "http":
            command = [
                "-m",
                "proxy",
                "--port",
                at[0],
                "--hostname",
                at[1],
                "--num-workers",
                "1",
                "--num-acceptors",
                "1",
            ]
            command += ["--basic-auth", f"{USER}:{PASSWORD}"] if self._needs_password else []
        else:
            command = ["-c", _WITH_LOOP, "-P", at[0], "-H", at[1], "--access-log"]
            if self._needs_password:
                users = self._folder / "users.json"
                users.write_text(json.dumps({"AUTH_METHOD": 2, "USERS": {USER: PASSWORD}}))
                command += ["--auth", "2", "--config", str(users)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-u", *command], stdout=log, stderr=log)
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < until, self.log
                assert self._process.poll() is None, self.log
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End the process, and with it all its connections."""
        self._process.terminate()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:  # On Python 3.14, the SOCKS server waits for its connections.
            self._process.kill()
            self._process.wait(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
