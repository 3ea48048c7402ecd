"""``python -m benchmarks consume | handlers | lanes | publish | rebalance | spark``, which ``scripts/bench`` is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.consume import consume
from benchmarks.handlers import handlers
from benchmarks.lanes import lanes
from benchmarks.publish import publish
from benchmarks.rebalance import rebalance
from tailrace import TailraceError

RESULTS = Path(__file__).parent / "results"

_CONSUME = """\
Read the same records with tailrace, aiokafka, confluent-kafka and FastStream.

One broker is started and one topic of 4 partitions filled. In each round each
client reads it, as a new group from the earliest offset, in a process of its
own; its clock starts at its first record and covers CPU time of all of its
threads. Shown are medians over the rounds, and written as JSON.

It takes about two minutes on two cores, and fails (exit code 1) if tailrace is
not at least 3 times as fast as aiokafka, both by `async for`.
"""

_HANDLERS = """\
Bring the same records to handlers that do nothing, by tailrace and FastStream:
of bytes, and of 100 B of JSON as a msgspec Struct here and a pydantic model
there. FastStream does it twice: as it does by default, where what was fetched
is committed whether it was handled or not, and at least once, as tailrace
always does.

It takes about a minute on two cores, and fails (exit code 1) if tailrace is not
at least 40 times as fast with typed values and 60 times with bytes, both at
least once.
"""

_LANES = """\
A handler that awaits 5 ms, on records of 64 keys dealt in turn, by key and 64
at once, beside 64 bare tasks that await the same and know of no broker.

It takes about a minute, and fails (exit code 1) if the handler does less
than 0.95 of what the tasks do, or if the order of a key is lost.
"""

_REBALANCE = """\
How long a partition that stays with its member goes without a record while
another member joins: with both protocols, and also while a third takes 5 s
over the record in its hand. Records come all the time.

Shown are medians over the rounds of the longest gap, and of the longest in as
long a time in which nothing happens; written as JSON. It takes about three
minutes, and fails (exit code 1) if a gap is above 100 ms and above twice the
quiet one.
"""

_PUBLISH = """\
Publish the same records with tailrace, aiokafka and confluent-kafka, each of
them idempotent: awaited one by one, by 1,000, not at all but for a flush at the
end, and in transactions of 1,000; 100 B and 1 KiB.

It takes about five minutes on two cores, and fails (exit code 1) if tailrace is
slower than aiokafka, or less than 1.5 times as fast where records are not
awaited one by one or in transactions.
"""

_SPARK = """\
A handler that does nothing on Spark, by SparkPipeline.backfill, beside plain
mapInArrow with one awaited call a record, in one warm session on this machine:
once with the same columns, once with the value alone.

It takes about three minutes, and fails (exit code 1) if the pipeline does less
than 0.8 of what plain mapInArrow does with the same columns.
"""


class Benchmark(NamedTuple):
    """One of the commands, with what it takes when nothing is said."""

    summary: str
    description: str
    rounds: int
    run: Callable[..., int]
    records: int | None = None
    size: int | None = None


def _spark(**options: Any) -> int:
    from benchmarks.spark import spark

    return spark(**options)


BENCHMARKS = {
    "consume": Benchmark("records a second, client beside client", _CONSUME, 3, consume, 1_000_000, 100),
    "handlers": Benchmark("records a second that a handler is given", _HANDLERS, 3, handlers, 1_000_000),
    "lanes": Benchmark("order by key, beside bare tasks", _LANES, 7, lanes, 38_400),
    "publish": Benchmark("records a second, producer beside producer", _PUBLISH, 5, publish),
    "rebalance": Benchmark("whether kept partitions go on while members come", _REBALANCE, 5, rebalance),
    "spark": Benchmark("handlers on Spark, beside plain mapInArrow", _SPARK, 3, _spark, 1_000_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    commands = parser.add_subparsers(dest="name", required=True, metavar="BENCHMARK")
    for name, one in BENCHMARKS.items():
        command = commands.add_parser(
            name,
            help=one.summary,
            description=one.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        counts = {
            "records": (one.records, "N", "how many (default: %(default)s)"),
            "size": (one.size, "BYTES", "of each value (default: %(default)s)"),
            "rounds": (one.rounds, "N", "default: %(default)s"),
        }
        for option, (default, metavar, said) in counts.items():
            if default is not None:
                command.add_argument(f"--{option}", type=_count, default=default, metavar=metavar, help=said)
        written = RESULTS / f"{name}.json"
        command.add_argument(
            "--json", dest="path", type=Path, default=written, metavar="PATH", help="default: %(default)s"
        )
    options = vars(parser.parse_args())
    try:
        return BENCHMARKS[options.pop("name")].run(**options)
    except KeyboardInterrupt:
        return 130
    except TailraceError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 1


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count - give a whole number from 1")
    return int(text)


sys.exit(main())
