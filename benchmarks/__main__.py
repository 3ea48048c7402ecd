"""``python -m benchmarks consume | handlers | lanes | rebalance | spark``, which ``scripts/bench`` is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.consume import consume
from benchmarks.handlers import handlers
from benchmarks.lanes import lanes
from benchmarks.rebalance import rebalance
from penstock import PenstockError

RESULTS = Path(__file__).parent / "results"

_CONSUME = """\
Read the same records with penstock, aiokafka, confluent-kafka and FastStream.

One broker is started and one topic of 4 partitions filled. In each round each
client reads it, as a new group from the earliest offset, in a process of its
own; its clock starts at its first record and covers CPU time of all of its
threads. Shown are medians over the rounds, and written as JSON.

It takes about two minutes on two cores, and fails (exit code 1) if penstock is
not at least 3 times as fast as aiokafka, both by `async for`.
"""

_HANDLERS = """\
Bring the same records to handlers that do nothing, by penstock and FastStream:
of bytes, and of 100 B of JSON as a msgspec Struct here and a pydantic model
there. FastStream does it twice: as it does by default, where what was fetched
is committed whether it was handled or not, and at least once, as penstock
always does.

It takes about a minute on two cores, and fails (exit code 1) if penstock is not
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


_SPARK = """\
A handler that does nothing on Spark, by SparkPipeline.backfill, beside plain
mapInArrow with one awaited call a record, in one warm session on this machine.

It takes about two minutes, and fails (exit code 1) if the pipeline does less
than 0.8 of what plain mapInArrow does.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    one = benchmarks.add_parser(
        "consume",
        help="records a second, client beside client",
        description=_CONSUME,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--records", type=_count, default=1_000_000, metavar="N", help="how many (default: %(default)s)")
    one.add_argument("--size", type=_count, default=100, metavar="BYTES", help="of each value (default: %(default)s)")
    one.add_argument("--rounds", type=_count, default=3, metavar="N", help="default: %(default)s")
    one.add_argument("--json", type=Path, default=RESULTS / "consume.json", metavar="PATH", help="default: %(default)s")
    two = benchmarks.add_parser(
        "handlers",
        help="records a second that a handler is given",
        description=_HANDLERS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    two.add_argument("--records", type=_count, default=1_000_000, metavar="N", help="how many (default: %(default)s)")
    two.add_argument("--rounds", type=_count, default=3, metavar="N", help="default: %(default)s")
    two.add_argument(
        "--json", type=Path, default=RESULTS / "handlers.json", metavar="PATH", help="default: %(default)s"
    )
    one.set_defaults(
        run=lambda options: consume(
            records=options.records, size=options.size, rounds=options.rounds, path=options.json
        )
    )
    two.set_defaults(run=lambda options: handlers(records=options.records, rounds=options.rounds, path=options.json))
    three = benchmarks.add_parser(
        "lanes",
        help="order by key, beside bare tasks",
        description=_LANES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    three.add_argument("--records", type=_count, default=38_400, metavar="N", help="how many (default: %(default)s)")
    three.add_argument("--rounds", type=_count, default=7, metavar="N", help="default: %(default)s")
    three.add_argument("--json", type=Path, default=RESULTS / "lanes.json", metavar="PATH", help="default: %(default)s")
    three.set_defaults(run=lambda options: lanes(records=options.records, rounds=options.rounds, path=options.json))
    other = benchmarks.add_parser(
        "rebalance",
        help="whether kept partitions go on while members come",
        description=_REBALANCE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    other.add_argument("--rounds", type=_count, default=5, metavar="N", help="default: %(default)s")
    other.add_argument(
        "--json", type=Path, default=RESULTS / "rebalance.json", metavar="PATH", help="default: %(default)s"
    )
    other.set_defaults(run=lambda options: rebalance(rounds=options.rounds, path=options.json))
    four = benchmarks.add_parser(
        "spark",
        help="handlers on Spark, beside plain mapInArrow",
        description=_SPARK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    four.add_argument("--records", type=_count, default=1_000_000, metavar="N", help="how many (default: %(default)s)")
    four.add_argument("--rounds", type=_count, default=3, metavar="N", help="default: %(default)s")
    four.add_argument("--json", type=Path, default=RESULTS / "spark.json", metavar="PATH", help="default: %(default)s")
    four.set_defaults(run=_spark)
    options = parser.parse_args()
    try:
        return options.run(options)
    except KeyboardInterrupt:
        return 130
    except PenstockError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 1


def _spark(options: argparse.Namespace) -> int:
    from benchmarks.spark import spark

    return spark(records=options.records, rounds=options.rounds, path=options.json)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count - give a whole number from 1")
    return int(text)


sys.exit(main())
