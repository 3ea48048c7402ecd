"""``tailrace kafka``: run a local broker for development and tests."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tailrace.context_managers import contextmanager
from tailrace.errors import ConfigurationError, KafkaServerError

if TYPE_CHECKING:
    from tailrace.cli.screen import Screen
    from tailrace.embedded.cluster import EmbeddedServer

__all__ = ["arguments", "local_broker", "run"]

_DESCRIPTION = """\
Run a local Apache Kafka broker until Ctrl-C.

This needs neither Docker nor an installed Java. The first start downloads the
broker (46 MB) from Maven Central and caches it. The broker listens on 127.0.0.1
without TLS or authentication, uses about 300 MB of memory, and deletes all data
when it stops.

Create topics with --topic: tailrace creates neither the topics of handlers nor
those to which it publishes. Clients that create topics on first use, such as
Java's producer, may do so.
"""

_EPILOG = """\
examples:
  tailrace kafka
  tailrace kafka --port 9092 --topic orders:6 --topic invoices

The command prints the address of the broker, and a shell command that sets the
environment variable TAILRACE_BOOTSTRAP_SERVERS, from which tailrace reads it.
"""

_POLL_INTERVAL_S = 0.5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("--port", type=_port, metavar="N", help="port to listen on (default: any free port)")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:N]",
        help="create a topic with N partitions, default 1 (repeatable)",
    )


def run(options: argparse.Namespace) -> int:
    """Run a broker until Ctrl-C.

    Raises:
        ConfigurationError: the environment selects external brokers.
        KafkaServerError: the broker did not start, or exited.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    from tailrace.cli.screen import Screen
    from tailrace.embedded.cluster import EXTERNAL_BROKERS

    if os.environ.get(EXTERNAL_BROKERS):
        raise ConfigurationError(
            f"{EXTERNAL_BROKERS} selects brokers that already run - unset it to start a local broker"
        )
    screen = Screen()
    try:
        with local_broker(screen, port=options.port, config={"auto.create.topics.enable": True}) as server:
            for name, partitions in options.topic:
                server.create_topic(name, partitions)
            if options.topic:
                screen.line("topics", ", ".join(f"{name} ({partitions})" for name, partitions in options.topic))
            screen.line("use", f"export TAILRACE_BOOTSTRAP_SERVERS={server.bootstrap_servers}")
            screen.line("stop", "press Ctrl-C; this deletes all data of the broker")
            while not server.nodes or server.node.is_running:
                time.sleep(_POLL_INTERVAL_S)
            raise KafkaServerError(f"the broker exited. Its log:\n{server.node.complaint()}")
    except KeyboardInterrupt:
        screen.console.print()  # The terminal has printed ^C into the current line.
        screen.line("stopped", "all data of the broker was deleted")
        raise


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"must be a port number from 1 to 65535, not {text!r}")
    return int(text)


def _topic(text: str) -> tuple[str, int]:
    name, separator, count = text.partition(":")
    if not name or (separator and not (count.isdecimal() and 1 <= int(count) <= 1_000)):
        raise argparse.ArgumentTypeError(
            f"must be NAME or NAME:PARTITIONS with 1 to 1000 partitions, such as orders:6, not {text!r}"
        )
    return name, int(count or 1)


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
    from tailrace.embedded import jars
    from tailrace.embedded.cluster import EXTERNAL_BROKERS, EmbeddedServer

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
