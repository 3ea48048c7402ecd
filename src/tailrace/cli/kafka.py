"""``tailrace kafka``: a broker to try things on."""

from __future__ import annotations

import argparse

from tailrace.errors import ConfigurationError, KafkaServerError

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Start a real Apache Kafka broker on this machine and keep it until Ctrl-C.

No Docker and no system Java: the broker comes from packages, the first time
with a download of 46 MB from Maven Central, which is kept. It listens on
127.0.0.1 without TLS or a login, makes topics when they are first written to,
and forgets all data when it ends.
"""

_EPILOG = """\
examples:
  tailrace kafka
  tailrace kafka --port 9092 --topic orders:6 --topic invoices

It takes 300 MB of memory. Other programs reach it by the address it prints;
tailrace also by TAILRACE_BOOTSTRAP_SERVERS.
"""

_LOOK_S = 0.5


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("--port", type=_port, metavar="N", help="listen there (any free port when nothing is said)")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:N]",
        help="make a topic of N partitions (default: 1); repeat for more",
    )


def run(options: argparse.Namespace) -> int:
    """Keep a broker until Ctrl-C; returns only when the broker ended before."""
    import os  # noqa: PLC0415 - all that a --help does without
    import time  # noqa: PLC0415

    from tailrace.cli.local_broker import local_broker  # noqa: PLC0415
    from tailrace.cli.screen import Screen  # noqa: PLC0415
    from tailrace.embedded.cluster import EXTERNAL  # noqa: PLC0415

    if os.environ.get(EXTERNAL):
        raise ConfigurationError(f"{EXTERNAL} names brokers that run already - unset it to have one started")
    screen = Screen()
    try:
        with local_broker(screen, port=options.port, config={"auto.create.topics.enable": True}) as server:
            for name, partitions in options.topic:
                server.create_topic(name, partitions)
            if options.topic:
                screen.say("topics", ", ".join(f"{name} ({partitions})" for name, partitions in options.topic))
            screen.say("use", f"export TAILRACE_BOOTSTRAP_SERVERS={server.bootstrap_servers}")
            screen.say("end", "Ctrl-C, and all that was written to it is gone")
            while not server.nodes or server.node.is_running:
                time.sleep(_LOOK_S)
            raise KafkaServerError(f"the broker has ended by itself. Its log says:\n{server.node.complaint()}")
    except KeyboardInterrupt:
        screen.console.print()  # after the terminal's ^C
        screen.say("ended", "nothing is left behind")
        raise


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port - give a number from 1 to 65535")
    return int(text)


def _topic(text: str) -> tuple[str, int]:
    name, separator, count = text.partition(":")
    if not name or (separator and not (count.isdecimal() and 1 <= int(count) <= 1_000)):
        raise argparse.ArgumentTypeError(f"{text} will not do: give a name, or name:6 for six partitions")
    return name, int(count or 1)
