"""``tailrace kafka``: run a local broker for development and tests."""

from __future__ import annotations

import argparse

from tailrace.errors import ConfigurationError, KafkaServerError

__all__ = ["arguments", "run"]

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
    """Add the options of the command."""
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
    import os  # noqa: PLC0415 - not needed by --help
    import time  # noqa: PLC0415

    from tailrace.cli.local_broker import local_broker  # noqa: PLC0415
    from tailrace.cli.screen import Screen  # noqa: PLC0415
    from tailrace.embedded.cluster import EXTERNAL_BROKERS  # noqa: PLC0415

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
