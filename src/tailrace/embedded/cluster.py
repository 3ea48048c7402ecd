"""KafkaCluster: the real broker, or three, for as long as a ``with`` block lasts.

Where they come from, in this order: ``TAILRACE_TEST_BOOTSTRAP_SERVERS`` (a cluster that is there already; only tests
use that name, since they create and delete topics), an installed Java >= 17 or the JRE wheel with the broker's jars,
testcontainers where Docker answers. Where none can be had, one error says what to install.
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
"""The variable that names brokers to use instead of starting some."""

_STARTS = 3
_EXTERNAL_S = 10


class EmbeddedCluster:
    """Several real brokers; ``with`` and ``async with`` start and end them.

    Args:
        brokers: how many; each is a controller too.
        security: how clients get in: ``"PLAINTEXT"``, ``"SSL"``, ``"MTLS"`` or a SASL mechanism.
        tls: whether a SASL mechanism goes over TLS.
        config: lines of ``server.properties`` that override ours, but for where it listens and writes.
        racks: ``broker.rack`` of each broker.
        version: of Apache Kafka.
        advertise: given each broker's id and port, the port that clients are told; a proxy listens there.
        progress: told how many of how many jars are there while they are downloaded.

    Raises:
        ConfigurationError: an option will not do.
        KafkaServerError: at start, with what the broker's log says; a KafkaNotAvailableError with what to install.
    """

    def __init__(  # noqa: PLR0913 - options of a test's broker
        self,
        brokers: int = 3,
        *,
        security: Security = "PLAINTEXT",
        tls: bool = False,
        config: Mapping[str, object] | None = None,
        racks: Sequence[str] | None = None,
        version: str = jars.KAFKA_VERSION,
        advertise: Callable[[int, int], int] | None = None,
        progress: jars.Progress | None = None,
    ) -> None:
        check_options(brokers, security, tls=tls, config=config or {}, racks=racks)
        self.version = version
        self.nodes: tuple[BrokerNode, ...] = ()
        """The brokers, to be stopped, killed, paused; empty when somebody else runs them."""
        self._count, self._racks, self._config = brokers, racks, dict(config or {})
        self._security_name: Security = security
        self._tls, self._advertise, self._progress = tls, advertise, progress
        self._security = ListenerSecurity("PLAINTEXT")
        self._port: int | None = None
        self._external: str | None = None
        self._container: ContainerBroker | None = None
        self._folder: Path | None = None
        self._is_up = False
        self._forget: Callable[[], None] = _nothing
        self._lock = threading.RLock()
        self._given_up = threading.Event()
        self._process_id = os.getpid()
        self._admin = TopicAdmin(self._internal_addresses)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.version} {list(self.nodes) or self._external or 'not started'}>"

    # ---- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the brokers and wait until they answer (about a second, and once 46 MB of download).

        Raises:
            KafkaServerError: they do not; what the log says of it is in the message, and nothing is left running.
            KafkaNotAvailableError: there is nothing to start them with.
        """
        self._start(threading.Event())

    def close(self) -> None:
        """End the brokers and remove all they wrote; a start that is under way is given up."""
        if self._process_id != os.getpid():
            return  # a child that was forked ends nothing of its parent's
        self._given_up.set()
        with self._lock:
            if self._container is not None:
                self._container.stop()
                self._container = None
            if self._is_up:
                self._is_up = False  # who asks a second time will not wait
                for node in self.nodes:
                    node.end()
            self._discard()
            self.nodes, self._folder, self._external = (), None, None
            self._forget()
            self._forget = _nothing

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        runs.end_on_signals()  # here, since the thread that starts the brokers cannot
        given_up = threading.Event()
        try:
            await anyio.to_thread.run_sync(self._start, given_up)
        except BaseException:
            # The thread goes on when we are cancelled.
            given_up.set()
            await self._close_in_thread()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_in_thread()

    # ---- what a client needs -----------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Where to connect, as the option of that name wants it."""
        return self._external or ",".join(node.address for node in self._our_nodes)

    @property
    def client_options(self) -> dict[str, object]:
        """Every consumer option that gets a client in, ``bootstrap_servers`` included."""
        return {"bootstrap_servers": self.bootstrap_servers, **self._security.client}

    # ---- topics ------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic and wait until all its partitions have leaders that serve them.

        With ``exist_ok`` a topic that exists is left as it is, records included.

        Raises:
            BrokerError: the topic exists, or its name or settings are refused.
        """
        try:
            self._admin.create(new_topic(name, partitions, replication_factor or -1, config or {}))
        except BrokerError as error:
            if not exist_ok or error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._admin.delete(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to ``total`` partitions."""
        self._admin.add_partitions(name, total)

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Delete records of each partition before an offset (-1: all there are), as retention would."""
        self._admin.delete_records(name, before)

    def leader_of(self, topic: str, partition: int = 0) -> BrokerNode:
        """The broker that leads a partition now."""
        found = self._admin.metadata(topic).topics[0]
        if found.error_code:
            raise broker_error(found.error_code, topic)
        leaders = {one.partition: one.leader_id for one in found.partitions}
        nodes = {node.node_id: node for node in self._our_nodes}
        if leaders.get(partition) not in nodes:
            raise KafkaServerError(f"{topic}[{partition}] has no leader now: {leaders}")
        return nodes[leaders[partition]]

    # ---- faults ------------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Wait until every broker that runs answers and knows the others."""
        self._wait_for([node for node in self.nodes if node.is_running and not node.is_paused])

    def restart(self, node: BrokerNode) -> None:
        """Start a broker that was stopped or killed (or stop and start one that runs) and wait until it answers."""
        node.stop()
        node.start()
        self._wait_for([one for one in self._our_nodes if one is node or (one.is_running and not one.is_paused)])

    # ---- inside ------------------------------------------------------------------------------------------------

    def _start(self, given_up: threading.Event) -> None:
        if self._folder is not None or self._external is not None:
            return
        if given := os.environ.get(EXTERNAL):
            self._use_external(given)
            return
        try:
            self._start_ours(given_up)
        except ModuleNotFoundError as error:
            raise KafkaNotAvailableError(f"{error.name} is not installed - {install_hint('testing')}") from error

    def _start_ours(self, given_up: threading.Event) -> None:
        try:
            parts = find_java(), jars.broker_class_path(self.version, self._progress)
        except KafkaNotAvailableError:
            if self._special or not ContainerBroker.is_possible():
                raise
            parts = None
        with self._lock:
            if given_up.is_set():
                return
            self._given_up, self._process_id = given_up, os.getpid()
            self._forget = runs.on_exit(self.close)
            if parts is None:
                self._start_container()
            else:
                self._start_processes(*parts)

    @property
    def _special(self) -> str | None:
        """The first option that only a broker of our own fulfils."""
        wanted = {
            "security": self._security_name != "PLAINTEXT",
            "config": bool(self._config),
            "racks": bool(self._racks),
            "advertise": self._advertise is not None,
            "port": self._port is not None,
            "brokers": self._count > 1,
        }
        return next((name for name, is_wanted in wanted.items() if is_wanted), None)

    def _use_external(self, addresses: str) -> None:
        if self._special not in {None, "brokers"}:
            raise KafkaNotAvailableError(
                f"{EXTERNAL} is set, and {self._special}= needs a broker of our own - unset it to have one started"
            )
        self._external = addresses
        try:
            self._admin.wait_for_brokers((), lambda: True, _EXTERNAL_S)
        except (KafkaServerError, ConfigurationError) as error:
            self._external = None
            raise KafkaServerError(
                f"{EXTERNAL}={addresses}: no broker answers there ({error})"
                " - start it, or unset the variable to have one started here"
            ) from error

    def _start_container(self) -> None:
        self._container = ContainerBroker()
        try:
            self._external = self._container.start()
        except BaseException:
            self.close()
            raise

    def _start_processes(self, java: Path, class_path: list[Path]) -> None:
        for attempt in range(1, _STARTS + 1):
            try:
                self._folder = runs.new_run_folder()
                self._launch(java, class_path, self._folder)
            except KafkaServerError as error:
                if attempt < _STARTS and "Address already in use" in str(error):
                    self._discard()
                    continue
                kept = self._keep_logs()
                self.close()
                raise KafkaServerError(f"{error}\nThe whole log: {kept}" if kept else str(error)) from error
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
        kept = formatted_file(self.version, self._security.scram, self._config)

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
            node.format(properties, cluster_id, self._security.scram, kept)
            # One alone: brokers that leave a quorum one by one take long to end.
            node.start(may_write_classes=self._count == 1)

        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(bring_up, self.nodes))
        self._wait_for(self.nodes)
        self._is_up = True

    def _wait_for(self, nodes: Sequence[BrokerNode]) -> None:
        def is_ready() -> bool:
            if self._given_up.is_set():
                raise KafkaServerError("closed while it started")
            for node in nodes:
                if not node.is_running:
                    raise KafkaServerError(f"broker {node.node_id} ended while it started")
            return all(node.is_listening for node in nodes)

        try:
            self._admin.wait_for_brokers([node.node_id for node in nodes], is_ready)
        except KafkaServerError as error:
            ended = [node for node in nodes if not node.is_running]
            what = f"broker {ended[0].node_id} ended while it started" if ended else str(error)
            logs = "\n".join(node.complaint() for node in ended or nodes)
            raise KafkaServerError(f"{what}. The log says:\n{logs}") from error

    @property
    def _our_nodes(self) -> tuple[BrokerNode, ...]:
        if not self.nodes and self._external is None:
            raise KafkaServerError("not started - use it in a `with` block, or call start()")
        if not self.nodes:
            raise KafkaServerError(f"these brokers are not ours to touch ({EXTERNAL}, or a container)")
        return self.nodes

    def _free_ports(self, count: int) -> list[int]:
        if self._port is None:
            return free_ports(count)
        if not is_free(self._port):
            raise KafkaServerError(f"port {self._port} is in use, or needs a right to be - choose another, or none")
        return [self._port, *(port for port in free_ports(count) if port != self._port)]

    def _ports(self, node_id: int, client: int, internal: int, controller: int) -> Ports:
        advertised = self._advertise(node_id, client) if self._advertise else client
        return Ports(client, internal, controller, advertised)

    def _discard(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._folder is not None:
            runs.remove_run_folder(self._folder)

    def _keep_logs(self) -> str:
        kept = []
        for node in self.nodes:
            if node.log_file.exists():
                logs = jars.cache_folder() / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                kept.append(shutil.copy(node.log_file, logs / f"broker-{node.node_id}.log"))
        return ", ".join(map(str, kept))

    def _internal_addresses(self) -> list[tuple[str, int]]:
        if self.nodes:
            awake = [node for node in self.nodes if node.is_running and not node.is_paused]
            if not awake:
                raise KafkaServerError("no broker runs - restart() or resume() one")
            return [("127.0.0.1", node.ports.internal) for node in awake]
        return [split_address(entry, EXTERNAL) for entry in self.bootstrap_servers.split(",")]

    async def _close_in_thread(self) -> None:
        with anyio.CancelScope(shield=True):
            # Under way before the first await, so that no cancellation comes before it.
            closing = asyncio.get_running_loop().run_in_executor(None, self.close)
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing})
                raise
            finally:
                runs.leave_signals_alone()


def _nothing() -> None:
    """What there is to forget before anything was registered."""
