"""Local broker that a command starts and stops, or brokers that the environment selects instead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from tailrace.cli.screen import Screen
from tailrace.context_managers import contextmanager
from tailrace.embedded import jars
from tailrace.embedded.cluster import EXTERNAL_BROKERS, EmbeddedServer

__all__ = ["local_broker"]


@contextmanager
def local_broker(
    screen: Screen, *, port: int | None = None, config: Mapping[str, str | float] | None = None
) -> Iterator[EmbeddedServer]:
    """Run a local broker for the duration of a ``with`` block; print its download, address and startup time.

    If TAILRACE_TEST_BOOTSTRAP_SERVERS is set, use the brokers that it names, and start none.

    Args:
        screen: output of the command.
        port: port to listen on; any free port if None.
        config: broker configuration that overrides the defaults of embedded brokers.

    Raises:
        KafkaNotAvailableError: this machine cannot start a broker; the message names the package to install.
        KafkaServerError: the broker did not start; the message ends with the last lines of the broker's log.
    """
    if os.environ.get(EXTERNAL_BROKERS):
        with EmbeddedServer() as server:
            screen.line("broker", f"{server.bootstrap_servers}, from {EXTERNAL_BROKERS}")
            yield server
        return
    note = "starting"
    if not jars.is_cached():
        folder = str(jars.cache_folder()).replace(os.path.expanduser("~"), "~", 1)  # noqa: PTH111 - Path.home() raises if there is no home
        screen.line("download", f"the broker (first start only): {jars.MEGABYTES} MB from Maven Central to {folder}")
        note = "listing its files"
    began = time.monotonic()
    with screen.progress() as progress:
        bar = progress.add_task("broker", total=None, note=note)

        def on_progress(done: int, total: int) -> None:
            note = "starting" if done == total else f"{done} of {total} files"
            progress.update(bar, completed=done, total=total, note=note)

        server = EmbeddedServer(progress=on_progress, port=port, config=config)
        server.start()
    with server:
        took = time.monotonic() - began
        version = f"Apache Kafka {server.version} on " if server.nodes else "in a container: "
        screen.line("broker", f"{version}{server.bootstrap_servers}, ready in {took:.1f} s")
        yield server
