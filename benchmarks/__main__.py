"""Command line of the benchmarks, run by ``scripts/bench``."""

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

In each round, each client reads a topic of 4 partitions from the earliest
offset, as a new group and in a separate process. Time is measured from its
first record; CPU time includes all threads. Medians over the rounds are shown
and written as JSON.

Takes about two minutes on two cores. Fails (exit code 1) unless tailrace is at
least 3 times as fast as aiokafka, both with `async for`.
"""

_HANDLERS = """\
Call handlers that do nothing with the same records, in tailrace and FastStream:
with bytes, and with 100 B of JSON decoded to a msgspec Struct (tailrace) or a
pydantic model (FastStream). FastStream runs twice: with its default, which
commits fetched records whether they were handled or not, and at least once, as
tailrace always does.

Takes about a minute on two cores. Fails (exit code 1) unless tailrace is at
least 40 times as fast with typed values and 60 times with bytes, both at least
once.
"""

_LANES = """\
Call a handler that sleeps 5 ms, with order_by="key" and concurrency=64, on
records with 64 alternating keys, and compare it with 64 tasks that sleep the
same without a broker.

Takes about a minute. Fails (exit code 1) if the handler's throughput is below
0.95 of the tasks', or if records of a key are handled out of order.
"""

_REBALANCE = """\
Measure the longest gap between records of a partition that its member keeps
while another member joins: with both protocols, and also while a third member
takes 5 s to handle its record. Records are produced continuously.

Medians over the rounds are shown, next to the longest gap in an equally long
time without a rebalance, and written as JSON. Takes about three minutes. Fails
(exit code 1) if a gap is above 100 ms and above twice the one without a
rebalance.
"""

_PUBLISH = """\
Publish the same records with idempotent producers of tailrace, aiokafka and
confluent-kafka: awaited one by one, awaited by 1,000, with only a flush at the
end, and in transactions of 1,000; with 100 B and 1 KiB.

Takes about five minutes on two cores. Fails (exit code 1) if tailrace is slower
than aiokafka, or less than 1.5 times as fast when records are awaited by 1,000
or only flushed.
"""

_SPARK = """\
Run a handler that does nothing with SparkPipeline.backfill, and compare it with
plain mapInArrow with one awaited call per record, in one warm local session:
with the same columns, and with the value alone.

Takes about three minutes. Fails (exit code 1) if the throughput of the pipeline
is below 0.8 of that of mapInArrow with the same columns.
"""


class Benchmark(NamedTuple):
    """Command with its default options."""

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
    "consume": Benchmark("compare the throughput of consumers", _CONSUME, 3, consume, 1_000_000, 100),
    "handlers": Benchmark("compare the throughput of handlers", _HANDLERS, 3, handlers, 1_000_000),
    "lanes": Benchmark("measure the cost of order by key", _LANES, 7, lanes, 38_400),
    "publish": Benchmark("compare the throughput of producers", _PUBLISH, 5, publish),
    "rebalance": Benchmark("measure gaps of kept partitions in rebalances", _REBALANCE, 5, rebalance),
    "spark": Benchmark("compare handlers on Spark with mapInArrow", _SPARK, 3, _spark, 1_000_000),
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
            "records": (one.records, "N", "number of records (default: %(default)s)"),
            "size": (one.size, "BYTES", "size of each value (default: %(default)s)"),
            "rounds": (one.rounds, "N", "default: %(default)s"),
        }
        for option, (default, metavar, text) in counts.items():
            if default is not None:
                command.add_argument(f"--{option}", type=_count, default=default, metavar=metavar, help=text)
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
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


sys.exit(main())
