"""Settings of every test, and fixtures that name topics and groups of a test's own on the shared broker."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import re
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before their import: assertions of support code are explained like those of tests.
pytest.register_assert_rewrite("tests.support")

from tests.support.event_recorder import EventRecorder  # noqa: E402
from tests.support.witness import Witness  # noqa: E402

# A run is the same as the one before; `pytest --hypothesis-profile=explore` looks further.
# Hypothesis measures how long it takes to generate examples, which says something about the machine only.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile("same")


def pytest_configure() -> None:
    # pytest-asyncio asks for the current event loop. Unless it is set to None, asyncio creates one, which is never
    # closed, and the test during which it is garbage-collected fails.
    asyncio.set_event_loop(None)
    # A background process, or one under nohup, ignores these signals, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="run only tests that start no broker, no other server and no type checker"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules that start a server, without their import."""
    if config.getoption("--quick") and collection_path.match("test_*.py"):
        return STARTS_SERVER.search(collection_path.read_text(encoding="utf-8")) is not None or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        chosen, left_out = [], []
        for item in items:
            (left_out if needs_server(item) else chosen).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
    # Runs of type checkers take longest. As the last tests, they would leave a process without work.
    items.sort(key=lambda item: "tests/typing/" not in item.nodeid)


def pytest_collection_finish() -> None:
    # Modules and collected tests live until the end. Full garbage collections would examine a million objects of them.
    gc.collect()
    gc.freeze()


STARTS_SERVER = re.compile(
    r"\b(Kafka(Server|Cluster)|running_(broker|postgresql|registry|service)|spark_session|SparkSession|Popen|SchemaRegistryServer"
    r"|running\(\"kafka|basedpyright)\b"
)


def needs_server(item: pytest.Item) -> bool:
    """Return True if the module of a test, or one of the test's fixtures, starts a broker or another process."""
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [fixture.func for fixtures_of_name in fixtures.values() for fixture in fixtures_of_name]
    return any(map(starts_server, [sys.modules[item.function.__module__], *functions]))


@functools.cache
def starts_server(code: object) -> bool:
    """Return True if the source of a module or function contains a call that starts a server."""
    return STARTS_SERVER.search(inspect.getsource(code)) is not None


@pytest.fixture
def name() -> str:
    """Topic name used by this test only."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """Group id used by this test only."""
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def witness(kafka_server) -> Witness:
    """Clients that are not tailrace's, on the shared broker."""
    return Witness(kafka_server.bootstrap_servers)


@pytest.fixture
def new_topic(kafka_server) -> Callable[..., str]:
    """Create a topic with a name of its own on the shared broker; keywords are its configuration."""

    def make(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        kafka_server.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    return make


@pytest.fixture
def recorder() -> EventRecorder:
    """Hook that records events, and waits for them."""
    return EventRecorder()
