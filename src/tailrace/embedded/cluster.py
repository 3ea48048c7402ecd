"""Embedded Kafka cluster for the duration of a ``with`` block.

Brokers come from the first available source:

1. an external cluster: running brokers whose addresses are in ``TAILRACE_TEST_BOOTSTRAP_SERVERS``. The cluster must be
   for tests only, because tests create and delete topics;
2. child processes, with an installed Java >= 17 or the JRE wheel, and downloaded jars;
3. a container, if Docker answers and testcontainers is installed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from tailrace.config import split_address
from tailrace.embedded import jars
from tailrace.embedded import run_folders as runs
from tailrace.embedded.container import ContainerBroker
from tailrace.embedded.java import find_java
from tailrace.embedded.node import BrokerNode
from tailrace.embedded.ports import free_ports, is_free
from tailrace.embedded.settings import (
    ConnectionOptions,
    ListenerSecurity,
    Ports,
    Security,
    check_options,
    listener_security,
    server_properties,
)
from tailrace.embedded.storage import formatted_file, new_id
from tailrace.embedded.topic_admin import TopicAdmin, new_topic
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConfigurationError, KafkaNotAvailableError, KafkaServerError, broker_error
from tailrace.extras import install_hint

__all__ = ["EXTERNAL", "EmbeddedCluster"]

EXTERNAL = "TAILRACE_TEST_BOOTSTRAP_SERVERS"
"""Environment variable with the addresses of running brokers to use instead of embedded brokers."""

_START_ATTEMPTS = 3
_EXTERNAL_TIMEOUT_S = 10


class EmbeddedCluster:
    """Kafka brokers, started and stopped by ``with`` or ``async with``.

    Args:
        brokers: number of brokers; each is also a controller.
        security: security of the client listener: ``"PLAINTEXT"``, ``"SSL"``, ``"MTLS"`` or a SASL mechanism.
        tls: True for a SASL mechanism over TLS.
        config: broker configuration (``server.properties``), without listeners and data folders.
        racks: ``broker.rack`` of each broker, in order.
        version: version of Apache Kafka.
        advertise: function that is called with a broker's id and port, and returns the port to advertise to clients,
            such as the port of a proxy.
        progress: function that is called during the download with the number of downloaded jars and the total number.

    Raises:
        ConfigurationError: an option is invalid.
        KafkaServerError: a broker did not start; the message contains the end of the broker's log.
        KafkaNotAvailableError: this machine has no means to start a broker; the message says what to install.
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
        """Brokers; empty unless this object has started broker processes."""
        self._count, self._racks, self._config = brokers, racks, dict(config or {})
        self._security_name: Security = security
        self._tls, self._advertise, self._progress = tls, advertise, progress
        self._security = ListenerSecurity("PLAINTEXT")
        self._port: int | None = None
        self._external: str | None = None
        self._container: ContainerBroker | None = None
        self._folder: Path | None = None
        self._is_up = False
        self._cancel_exit_callback: Callable[[], None] = _do_nothing
        self._lock = threading.RLock()
        self._start_aborted = threading.Event()
        self._process_id = os.getpid()
        self._admin = TopicAdmin(self._internal_addresses)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.version} {list(self.nodes) or self._external or 'not started'}>"

    # ---- start and stop ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the brokers and wait until they are ready; do nothing if they are started.

        Child processes are ready in about a second. The first start on a machine downloads 46 MB.

        Raises:
            KafkaServerError: the brokers did not start; no process is left running.
            KafkaNotAvailableError: this machine has no means to start a broker.
        """
        self._start(threading.Event())

    def close(self) -> None:
        """Stop the brokers and remove their files; abort a start in progress. An external cluster keeps running."""
        if self._process_id != os.getpid():
            return  # This is a forked child of the process that started the brokers.
        self._start_aborted.set()
        with self._lock:
            if self._container is not None:
                self._container.stop()
                self._container = None
            if self._is_up:
                self._is_up = False  # A nested call, by a signal handler, kills the brokers.
                for node in self.nodes:
                    node.end()
            self._discard()
            self.nodes, self._folder, self._external = (), None, None
            self._cancel_exit_callback()
            self._cancel_exit_callback = _do_nothing

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Install signal handlers here, in the main thread, because _start() runs in another thread.
        runs.end_on_signals()
        aborted = threading.Event()
        try:
            await anyio.to_thread.run_sync(self._start, aborted)
        except BaseException:
            # A cancellation does not stop the thread, so tell it to abort the start.
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

        With ``exist_ok``, an existing topic is left unchanged.

        Raises:
            BrokerError: the topic exists, or the brokers refuse its name or configuration.
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
        """Add partitions to a topic until it has ``total``."""
        self._admin.add_partitions(name, total)

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Delete the first records of partitions, as retention does.

        ``before`` has, by partition number, the offset of the first record to keep; -1 deletes all records.
        """
        self._admin.delete_records(name, before)

    def leader_of(self, topic: str, partition: int = 0) -> BrokerNode:
        """Return the broker that leads a partition.

        Raises:
            BrokerError: the topic does not exist.
            KafkaServerError: the partition has no leader, or this object has not started the brokers.
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
        """Wait until all brokers that run and are not paused answer requests and have joined the cluster."""
        self._wait_for([node for node in self.nodes if node.is_running and not node.is_paused])

    def restart(self, node: BrokerNode) -> None:
        """Stop a broker if it runs, start it, and wait until it and the other running brokers are ready."""
        node.stop()
        node.start()
        self._wait_for([one for one in self._started_nodes if one is node or (one.is_running and not one.is_paused)])

    # ---- inside ------------------------------------------------------------------------------------------------

    def _start(self, aborted: threading.Event) -> None:
        if self._folder is not None or self._external is not None:
            return
        if addresses := os.environ.get(EXTERNAL):
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
            self._cancel_exit_callback = runs.on_exit(self.close)
            if java_and_jars is None:
                self._start_container()
            else:
                self._start_processes(*java_and_jars)

    @property
    def _embedded_only_option(self) -> str | None:
        """Name of an option that was set and requires an embedded broker; None if there is no such option."""
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
                f"{EXTERNAL} is set, but {self._embedded_only_option}= requires an embedded broker - unset the variable"
            )
        self._external = addresses
        try:
            self._admin.wait_for_brokers((), lambda: True, _EXTERNAL_TIMEOUT_S)
        except (KafkaServerError, ConfigurationError) as error:
            self._external = None
            raise KafkaServerError(
                f"{EXTERNAL}={addresses}: no broker answers there ({error})"
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
                self._folder = runs.new_run_folder()
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
        numbers = self._free_ports(3 * self._count)
        ports = {node: self._ports(node, *numbers[3 * node - 3 : 3 * node]) for node in ids}
        self.nodes = tuple(BrokerNode(node, ports[node], folder / str(node), java, class_path) for node in ids)
        cluster_id, controllers = new_id(), {node: ports[node].controller for node in ids}
        format_cache = formatted_file(self.version, self._security.scram, self._config)

        def bring_up(node: BrokerNode) -> None:
            properties = server_properties(
                node_id=node.node_id,
                ports=node.ports,
                controllers=controllers,
                data=node.data,
                security=self._security,
                rack=self._racks[node.node_id - 1] if self._racks else None,
                config=self._config,
            )
            node.format(properties, cluster_id, self._security.scram, format_cache)
            # A broker writes the class data archive on a clean exit. Only a single broker may do so, because the last
            # brokers of a cluster have no quorum anymore, and their clean exit takes long.
            node.start(may_write_classes=self._count == 1)

        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(bring_up, self.nodes))
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
            raise KafkaServerError(f"brokers of {EXTERNAL} or a container cannot be stopped, killed or paused")
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
        """Kill the broker processes and remove their files."""
        for node in self.nodes:
            node.kill()
        if self._folder is not None:
            runs.remove_run_folder(self._folder)

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
        return [split_address(entry, EXTERNAL) for entry in self.bootstrap_servers.split(",")]

    async def _close_in_thread(self) -> None:
        with anyio.CancelScope(shield=True):
            # Submit close() before the first await, so that a cancellation cannot prevent it.
            closing = asyncio.get_running_loop().run_in_executor(None, self.close)
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing})
                raise
            finally:
                runs.leave_signals_alone()


def _do_nothing() -> None:
    """Do nothing, while no exit callback is registered."""
