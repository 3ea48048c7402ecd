"""Fixtures: the example services as processes, on a broker without leftovers of earlier tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tailrace.embedded.cluster import free_ports
from tailrace.testing import KafkaServer
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.proxied_broker import ProxiedBroker

ROOT = Path(__file__).parents[2]
TOPICS = ("orders", "invoices", "blocks", "fatal")
PARTITIONS = 3
PATIENCE_S = 90
"""A service that starts in three seconds takes twenty on a busy machine."""


class Service:
    """Running service, which is called over HTTP, logs, and ends on a signal."""

    def __init__(self, command: list[str], port: int, log: Path, variables: dict[str, str]) -> None:
        self._log = log
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**variables), stdout=sink, stderr=subprocess.STDOUT
            )
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def status(self, path: str) -> int:
        """Return the status of a response."""
        return (await self.http.get(path)).status_code

    async def wait_for_status(self, path: str, status: int) -> None:
        """Wait until the response has the given status."""
        await self._asking(path, lambda answer: answer.status_code == status)

    async def wait_for_check(self, check: str, status: str) -> dict[str, str]:
        """Wait until one health check has the given status; return the check."""
        answer = await self._asking("/livez", lambda answer: _checks(answer)[check]["status"] == status)
        return _checks(answer)[check]

    async def wait_until_ready(self) -> None:
        """Wait until it is ready, and all health checks are ok."""
        await self._asking("/readyz", lambda answer: {one["status"] for one in _checks(answer).values()} == {"ok"})

    async def _asking(self, path: str, is_it: Callable[[httpx.Response], bool]) -> httpx.Response:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self.process.poll() is None, self.log
                try:
                    if is_it(answer := await self.http.get(path)):
                        return answer
                except httpx.ConnectError:
                    pass  # the server does not listen yet
                await asyncio.sleep(0.02)

    async def wait_for_log(self, words: str) -> str:
        """Wait for a line of its log."""
        await until(lambda: words in self.log, PATIENCE_S)
        return next(line for line in self.log.splitlines() if words in line)

    async def order(self, customer: str, total: int) -> int:
        """Place an order over HTTP; return the status of the response."""
        return (await self.http.post("/orders", json={"customer": customer, "total": total})).status_code

    async def end(self) -> float:
        """Send SIGTERM; return the seconds until it has exited."""
        began_at = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, 60)
        return time.monotonic() - began_at

    async def close(self) -> None:
        """Stop it cleanly, so that it leaves its group, or kill it."""
        await self.http.aclose()
        if self.process.poll() is None:
            try:
                await self.end()
            finally:
                self.process.kill()
                self.process.wait()


class Home:
    """Example service that can be started, and the results of its handler."""

    def __init__(self, kind: str, server: KafkaServer, folder: Path) -> None:
        self.kind, self.server, self._folder = kind, server, folder
        self.witness = ProxiedBroker(server)
        self.started: list[Service] = []

    def start(self, *, is_spoiled: bool = False, **variables: str) -> Service:
        """Start the service as a process, with options of tailrace by their names."""
        (port,) = free_ports(1)
        module = f"spoiled_{self.kind}" if is_spoiled else f"examples.{self.kind}_service"
        server = ["uvicorn", f"{module}:web", "--port", str(port)] if self.kind == "fastapi" else [module]
        service = Service(
            [sys.executable, "-m", *server],
            port,
            self._folder / f"{len(self.started)}.log",
            {
                "TAILRACE_BOOTSTRAP_SERVERS": self.server.bootstrap_servers,
                "TAILRACE_HEARTBEAT_INTERVAL_MS": "300",
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, Path(__file__).parent))),
                "BILLING_DATABASE": str(self._folder / "billing.db"),
                "PORT": str(port),
                **variables,
            },
        )
        self.started.append(service)
        return service

    async def forget(self) -> None:
        """Remove the topics and groups that a test has left."""
        for service in self.started:
            await service.close()
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(self._removed_group):  # noqa: ASYNC110 - a broker sends no notification
                await asyncio.sleep(0.1)
        for topic in TOPICS:
            await asyncio.to_thread(self.server.delete_topic, topic)

    def _removed_group(self) -> bool:
        try:
            self.witness.admin.delete_consumer_groups(["billing"])["billing"].result(20)
        except KafkaException as refused:
            # A killed member stays in the group until its session expires.
            return refused.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
        return True

    def charged(self) -> list[int]:
        """Return the totals of the handled orders, repeated ones included."""
        if self.kind == "fastapi":
            return [total for (total,) in self._asked("SELECT total FROM charges")]
        return self._invoices()

    def how_many(self) -> int:
        """Return the number of handled orders, repeated ones included."""
        if self.kind == "fastapi":
            return sum(count for (count,) in self._asked("SELECT count(*) FROM charges"))
        return sum(self._ends().values())

    def _asked(self, question: str) -> list[tuple[int]]:
        path = self._folder / "billing.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path, timeout=30)) as database:
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return database.execute(question).fetchall() if tables[0] else []

    def _ends(self) -> dict[int, int]:
        places = [TopicPartition("invoices", partition) for partition in range(PARTITIONS)]
        asked = self.witness.admin.list_offsets({place: OffsetSpec.latest() for place in places})
        return {place.partition: found.result(20).offset for place, found in asked.items()}

    def _invoices(self) -> list[int]:
        found: list[int] = []
        with closing(Consumer({"bootstrap.servers": self.server.bootstrap_servers, "group.id": "ledger"})) as reader:
            for partition, end in self._ends().items():
                reader.assign([TopicPartition("invoices", partition, 0)])
                count = 0
                while count < end:
                    for message in reader.consume(min(end - count, 1_000), 10):
                        assert message.error() is None, message.error()
                        found.append(json.loads(message.value())["due"])
                        count += 1
        return found


@pytest.fixture(scope="session")
def proxied_server() -> Iterator[KafkaServer]:
    """Start a broker behind a fault proxy, shared by tests that run one after another."""
    with KafkaServer(proxied=True) as server:
        yield server


@pytest.fixture(params=["fastapi", "aiohttp"])
async def home(request, proxied_server, tmp_path) -> AsyncIterator[Home]:
    """Provide an example and its topics."""
    for topic in TOPICS:
        proxied_server.create_topic(topic, PARTITIONS)
    home = Home(request.param, proxied_server, tmp_path)
    yield home
    await home.forget()


def _checks(answer: httpx.Response) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in answer.json()["checks"]}
