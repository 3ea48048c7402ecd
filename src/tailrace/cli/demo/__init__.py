"""``tailrace demo``: arguments and help; ``steps`` publishes and reads the flights."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Publish the 336,776 flights that left New York City in 2013 to a Kafka topic,
and read them with a consumer group of two members.

The demo starts a local Apache Kafka broker (without Docker or an installed
Java), publishes one JSON record per flight to a topic of 6 partitions, reads
all records, and shows the ten routes with the highest mean delay. It then
verifies that each record was handled exactly once: it counts how often each
offset was handled, and reads the committed offsets from the broker. Finally it
removes everything that it created.

The demo takes about ten seconds on two cores, and needs 400 MB of memory and
100 MB of disk. The first run downloads 46 MB from Maven Central and caches
them.

With --engine spark, the same handler runs on a local Apache Spark (install it
with pip install '.[demo,spark]', about 500 MB). A backfill writes the results
of the handler to a table, and Spark computes the delays and the verification
from this table. This takes about a minute on two cores, and needs 2 GB of
memory and 200 MB of disk. The first run downloads another 70 MB.
"""

_EPILOG = """\
examples:
  tailrace demo
  tailrace demo --limit 20000
  tailrace demo --rate 2000 --limit 60000     watch it for 30 seconds
  tailrace demo --engine spark                handle the flights on Apache Spark
  tailrace demo --bootstrap-servers kafka.example.org:9092

With --bootstrap-servers, the demo creates a topic and a group on those brokers
and deletes both at the end. Set TLS and SASL with environment variables, such
as TAILRACE_SECURITY_PROTOCOL and TAILRACE_SASL_PLAIN_PASSWORD_FILE.

exit codes: 0 every record was handled exactly once and committed, 1 failure,
2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="use these brokers instead of a local one")
    parser.add_argument(
        "--rate",
        type=_positive(float),
        metavar="N",
        help="publish N flights per second, and read them at the same time (default: publish all, then read)",
    )
    parser.add_argument(
        "--engine",
        choices=("asyncio", "spark"),
        default="asyncio",
        help="read with two asyncio consumers, or with Apache Spark, which excludes --rate (default: asyncio)",
    )
    parser.add_argument(
        "--limit", type=_positive(int), metavar="N", help="publish only the first N flights (default: all)"
    )


def run(options: argparse.Namespace) -> int:
    from tailrace.cli.demo.steps import play

    return play(options)


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be greater than 0, not {text}")
        return value

    number.__name__ = "number"  # part of argparse's message "invalid number value: 'x'"
    return number
