"""Command line of the benchmarks, run by ``scripts/bench``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.consume import compare
from benchmarks.lanes import lanes
from benchmarks.latency import latency
from benchmarks.processes import BACKLOG_BYTES, idle, memory, start
from benchmarks.publish import publish
from benchmarks.rebalance import rebalance
from benchmarks.rounds import ROOT
from benchmarks.topics import CODECS, TopicSettings
from tailrace import TailraceError

RESULTS = ROOT / "docs" / "performance"

_CONSUME = """\
Read the same records with tailrace, aiokafka, confluent-kafka, FastStream and
Java's client.

In each round, each client reads the topic as a new group and in a separate
process. It is measured after a warm-up of 2 s, for --seconds; CPU time includes
all threads. At the end of the topic, clients seek to the beginning, except
Java's tool, which is measured until there.

Takes 15 s per client and round. With the default records, fails (exit code 1)
unless tailrace is at least 3 times as fast as aiokafka, both with `async for`.
"""

_HANDLERS = """\
Call handlers that do nothing with the same records of 100 B: with bytes, with
JSON decoded to a msgspec Struct (tailrace) or a pydantic model (FastStream),
and with lists of 500 values, next to getmany(500). FastStream runs twice: with
its default, which commits fetched records whether they were handled or not, and
at least once, as tailrace always does.

Takes 15 s per client and round. Fails (exit code 1) unless tailrace is at least
40 times as fast with typed values and 60 times with bytes, both at least once.
"""

_PURE = """\
Read the same records with tailrace with and without its compiled module, next
to aiokafka.

Takes 15 s per client and round. Fails (exit code 1) if tailrace without its
module is slower than aiokafka, both with `async for`.
"""

_LATENCY = """\
Measure the time from a producer in another process to the client, at 500 and
5,000 records a second, with and without a busy loop in the client's process
that takes half of a core.

Takes 60 s per round with `--seconds 1`, and 20 s more for each second.
"""

_MEMORY = """\
Measure the memory of clients that read a backlog of 2 GB and sleep 10 ms for
each record.

Takes a minute, and --seconds for each of five clients and each round.
"""

_IDLE = """\
Measure CPU and memory of clients with 1,000 assigned partitions and no records.

Takes 10 s per client and round, and --seconds.
"""

_START = """\
Measure the time from the start of the process to its first record, with a new
group.

Takes about 2 s per client and round.
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


class Option(NamedTuple):
    """Option of a command."""

    name: str
    default: Any
    text: str
    metavar: str = "N"
    choices: tuple[Any, ...] | None = None
    repeats: bool = False


class Benchmark(NamedTuple):
    """Command with its options besides ``--json``."""

    summary: str
    description: str
    run: Callable[..., int]
    options: tuple[Option, ...]

    def file_name(self, name: str, given: Mapping[str, Any]) -> str:
        """Return the name of the file for results, with the settings that differ from the defaults."""
        different = (
            f"{one.name}-{given[one.name]}"
            for one in self.options
            if one.name not in _NOT_IN_FILE_NAMES and given[one.name] != one.default
        )
        return "-".join([name, *different]) + ".json"


def _rounds(default: int = 5) -> Option:
    return Option("rounds", default, "default: %(default)s")


def _seconds(default: int = 10) -> Option:
    return Option("seconds", default, "time to measure in each run, after a warm-up (default: %(default)s)")


def _records(default: int) -> Option:
    return Option("records", default, "number of records (default: %(default)s)")


def _spark(**options: Any) -> int:
    from benchmarks.spark import spark

    return spark(**options)


_CLIENTS = Option("clients", [], "run only clients whose name contains WORD (repeatable)", "WORD", repeats=True)
_NOT_IN_FILE_NAMES = {"rounds", "seconds", "clients", "records"}
_TOPIC = TopicSettings()
_SHAPE = (
    Option("payload", _TOPIC.payload, "size of each value (default: %(default)s)", "BYTES"),
    Option("codec", _TOPIC.codec, "compression of the batches (default: %(default)s)", "CODEC", CODECS),
    Option("headers", _TOPIC.headers, "number of headers of each record (default: %(default)s)"),
    Option("partitions", _TOPIC.partitions, "default: %(default)s"),
    Option("brokers", 1, "1 or 3 (default: %(default)s)", choices=(1, 3)),
)

BENCHMARKS = {
    "consume": Benchmark(
        "compare the throughput of consumers",
        _CONSUME,
        partial(compare, "consume"),
        (*_SHAPE, _rounds(), _seconds(), _CLIENTS),
    ),
    "handlers": Benchmark(
        "compare the throughput of handlers", _HANDLERS, partial(compare, "handlers"), (_rounds(), _seconds(), _CLIENTS)
    ),
    "pure": Benchmark(
        "measure tailrace without its compiled module",
        _PURE,
        partial(compare, "pure"),
        (_rounds(), _seconds(), _CLIENTS),
    ),
    "latency": Benchmark("compare latencies", _LATENCY, latency, (_rounds(3), _seconds(5), _CLIENTS)),
    "memory": Benchmark(
        "compare the memory of slow clients with a backlog",
        _MEMORY,
        memory,
        (
            Option("backlog", BACKLOG_BYTES, "size of the backlog (default: %(default)s)", "BYTES"),
            _rounds(1),
            _seconds(30),
            _CLIENTS,
        ),
    ),
    "idle": Benchmark(
        "compare clients without records",
        _IDLE,
        idle,
        (Option("partitions", 1_000, "default: %(default)s"), _rounds(3), _seconds(), _CLIENTS),
    ),
    "start": Benchmark("compare the time to the first record", _START, start, (_rounds(), _CLIENTS)),
    "lanes": Benchmark("measure the cost of order by key", _LANES, lanes, (_records(38_400), _rounds(7))),
    "publish": Benchmark("compare the throughput of producers", _PUBLISH, publish, (_rounds(),)),
    "rebalance": Benchmark("measure gaps of kept partitions in rebalances", _REBALANCE, rebalance, (_rounds(),)),
    "spark": Benchmark("compare handlers on Spark with mapInArrow", _SPARK, _spark, (_records(1_000_000), _rounds(3))),
}


_BY_BATCH = "--clients (5000) --clients async --clients java"

SUITE = (
    "consume",
    "consume --payload 1024 --rounds 3 --seconds 8",
    "handlers --rounds 3 --seconds 5",
    *(f"consume --codec {codec} --rounds 2 --seconds 3 {_BY_BATCH}" for codec in ("lz4", "zstd", "snappy", "gzip")),
    "latency --rounds 2 --seconds 2",
    "memory",
    "consume --partitions 1000 --rounds 2 --seconds 5 --clients async --clients consume(5000) --clients java",
    "idle --rounds 2 --seconds 5",
    "start --rounds 3",
    "pure --rounds 2 --seconds 4",
    "publish --rounds 2",
    "rebalance --rounds 1",
    "consume --payload 10240 --rounds 2 --seconds 4",
    "consume --headers 5 --rounds 2 --seconds 4",
    "consume --brokers 3 --rounds 2 --seconds 4",
)
"""Benchmarks of ``scripts/bench all``, the most important ones first."""

_ALL = """\
Run these benchmarks one after another, and go on after a failure. Takes about
an hour; with --minutes, no benchmark starts after that time. Then write
docs/performance.md with python docs/performance.py.

""" + "\n".join(f"  {arguments}" for arguments in SUITE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, one in BENCHMARKS.items():
        command = commands.add_parser(
            name,
            help=one.summary,
            description=one.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option in one.options:
            numeric = isinstance(option.default, int)
            command.add_argument(
                f"--{option.name}",
                type=(_number if option.name == "headers" else _count) if numeric else str,
                default=option.default,
                metavar=option.metavar,
                choices=option.choices,
                help=option.text,
                **({"action": "append"} if option.repeats else {}),
            )
        command.add_argument(
            "--json", dest="path", type=Path, metavar="PATH", help=f"default: docs/performance/{name}[-SETTINGS].json"
        )
    everything = commands.add_parser(
        "all",
        help="run the benchmarks of docs/performance.md",
        description=_ALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    everything.add_argument("--minutes", type=_count, default=24 * 60, metavar="N", help="start none after N minutes")
    options = vars(parser.parse_args())
    try:
        if options["benchmark"] == "all":
            return _run_all(options["minutes"])
        return _run(**options)
    except KeyboardInterrupt:
        return 130


def _run_all(minutes: int) -> int:
    """Run each benchmark in a separate process; return 0 if none failed, else 1."""
    began, failed = time.monotonic(), 0
    for arguments in SUITE:
        taken_min = (time.monotonic() - began) / 60
        is_late = taken_min >= minutes
        print(f"\n{taken_min:.0f} min: {'left out ' if is_late else ''}scripts/bench {arguments}", flush=True)
        if not is_late:
            done = subprocess.run([sys.executable, "-m", "benchmarks", *arguments.split()], cwd=ROOT, check=False)
            failed += bool(done.returncode)
    return min(failed, 1)


def _run(benchmark: str, path: Path | None, **options: Any) -> int:
    one = BENCHMARKS[benchmark]
    try:
        return one.run(**options, path=path or RESULTS / one.file_name(benchmark, options))
    except TailraceError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 1


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a non-negative integer, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
