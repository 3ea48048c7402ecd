"""Brokers in containers."""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tailrace.embedded.cluster import ContainerBroker


@contextlib.contextmanager
def docker_daemon(socket: Path):
    """Serve as much of Docker's API as the creation of a container needs, refuse it, and collect the requests."""
    created: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.answer(200, {"ApiVersion": "1.44", "Version": "25", "MinAPIVersion": "1.24"})

        def do_POST(self) -> None:
            created.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(500, {"message": "no space left on device"})

        def answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with socketserver.ThreadingUnixStreamServer(str(socket), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield created
        server.shutdown()


@pytest.mark.skipif(sys.platform == "win32", reason="Docker has no Unix socket there")
def test_the_broker_of_a_container_is_reachable_from_this_host_only(tmp_path, monkeypatch):
    """The port of a container, whose broker has no authentication, is published on the loopback address."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'docker.sock'}")
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)

    with docker_daemon(tmp_path / "docker.sock") as created, pytest.raises(Exception, match="no space left"):
        ContainerBroker().start()

    (bindings,) = [one["HostConfig"]["PortBindings"].values() for one in created]
    assert [host["HostIp"] for ports in bindings for host in ports] == ["127.0.0.1"]
