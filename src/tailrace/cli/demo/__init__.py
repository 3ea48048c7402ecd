"""``tailrace demo``: what it says of itself; what it does stands in ``play``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Replay the 336,776 flights that left New York City in 2013 into a Kafka topic,
and read them with a consumer group of two members.

It starts a real Apache Kafka broker on this machine (no Docker, no system
Java), fills a topic of 6 partitions with one JSON record a flight, reads them
all, and shows the ten routes that arrived latest. Then it proves that each
record was handled once: every offset of every partition is counted, and the
committed offsets are read back from the broker. Nothing is left behind.

It takes about ten seconds on two cores, 400 MB of memory and 100 MB of disk;
the first time also a download of 46 MB from Maven Central, which is kept.

With --engine spark the same handler reads them on Apache Spark, on this
machine (pip install '.[demo,spark]'): a backfill writes a table, Spark
sums it up, and counts each offset in it. It takes about a minute on two
cores, 2 GB of memory and 200 MB of disk; the first time also 70 MB more from
Maven Central. pip brings Spark itself, some 500 MB.
"""

_EPILOG = """\
examples:
  tailrace demo
  tailrace demo --limit 20000
  tailrace demo --rate 2000 --limit 60000     watch it live, for 30 seconds
  tailrace demo --engine spark                the same routes, by Apache Spark
  tailrace demo --bootstrap-servers kafka.example.org:9092

With --bootstrap-servers it makes a topic and a group of its own on those
brokers and deletes both in the end. TLS and SASL come from the environment,
such as TAILRACE_SECURITY_PROTOCOL and TAILRACE_SASL_PLAIN_PASSWORD_FILE.

It exits with 0 only if every record was handled exactly once and committed.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="use these brokers instead of starting one")
    parser.add_argument(
        "--rate", type=_more_than_zero(float), metavar="N", help="replay N flights a second, and read them meanwhile"
    )
    parser.add_argument(
        "--engine",
        choices=("asyncio", "spark"),
        default="asyncio",
        help="what reads them: a group of two consumers (asyncio, the default), or Apache Spark; not with --rate",
    )
    parser.add_argument("--limit", type=_more_than_zero(int), metavar="N", help="only the first N flights")


def run(options: argparse.Namespace) -> int:
    """Play it; gives the exit code."""
    from tailrace.cli.demo.steps import play  # noqa: PLC0415 - all that a --help does without

    return play(options.bootstrap_servers, rate=options.rate, limit=options.limit, on_spark=options.engine == "spark")


def _more_than_zero(kind: type[int | float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} will not do: it has to be more than 0")
        return value

    number.__name__ = "number"  # argparse says "invalid number value: 'x'"
    return number
