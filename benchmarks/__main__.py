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
process. After a warm-up of 2 s, the client is measured for --seconds. CPU time
includes all threads. At the end of the topic, clients seek to the beginning,
except Java's tool, whose measurement ends there.

The benchmark takes 15 s per client and round. With the default topic, it fails
(exit code 1) unless tailrace is at least 3 times as fast as aiokafka, both with
`async for`.
"""

_HANDLERS = """\
Call handlers that do nothing with the same records of 100 B: handlers of bytes,
handlers of JSON that is decoded to a msgspec Struct (tailrace) or a pydantic
model (FastStream), and handlers of lists of 500 values, which are compared with
getmany(500). FastStream is measured with its default, which commits fetched
records whether they were handled or not, and with at-least-once delivery, which
is the default of tailrace.

The benchmark takes 15 s per client and round. It fails (exit code 1) unless
tailrace is at least 40 times as fast as FastStream with decoded JSON and 60
times as fast with bytes, both with at-least-once delivery.
"""

_PURE = """\
Read the same records with tailrace, with and without its compiled module, and
with aiokafka.

The benchmark takes 15 s per client and round. It fails (exit code 1) if
tailrace without its compiled module is slower than aiokafka, both with
`async for`.
"""

_LATENCY = """\
Measure the time from a producer in another process to the client, at 500 and
5,000 records a second. Each rate is measured with and without a busy loop in
the client's process that takes half of a core.

The benchmark takes 60 s per round with `--seconds 1`, and 20 s more for each
further second.
"""

_MEMORY = """\
Measure the memory of clients that read a backlog of 2 GB and sleep 10 ms for
each record.

The benchmark takes a minute, and --seconds for each of five clients and each
round.
"""

_IDLE = """\
Measure CPU and memory of clients with 1,000 assigned partitions and no records.

The benchmark takes 10 s and --seconds per client and round.
"""

_START = """\
Measure the time from the start of the process to its first record, with a new
group.

The benchmark takes about 2 s per client and round.
"""

_LANES = """\
Call a handler that sleeps 5 ms, with order_by="key" and concurrency=64, for
records with 64 alternating keys, and compare it with 64 tasks that sleep 5 ms
repeatedly without a broker.

The benchmark takes about a minute. It fails (exit code 1) if the throughput of
the handler is below 0.95 of that of the tasks, or if records of a key are
handled out of order.
"""

_REBALANCE = """\
Measure the longest time between two records of a partition while its group
rebalances because another member joins. Only partitions that stay assigned to
their member are measured. Each group protocol is measured twice; the second
time, another member takes 5 s to handle a record during the rebalance. Records
are produced continuously.

The results are medians over the rounds. They are compared with the longest time
between two records in a period of the same length without a rebalance.

The benchmark takes about three minutes. It fails (exit code 1) if a result is
above 100 ms and above twice the result without a rebalance.
"""

_PUBLISH = """\
Publish the same records with idempotent producers: tailrace, aiokafka, and
Producer and AIOProducer of confluent-kafka. The program awaits the
acknowledgment of each record ("one by one"), or of 1,000 records at a time
("by 1,000"), or only flushes at the end ("not awaited"), or commits
transactions of 1,000 records. The values have 100 B or 1 KiB, and are not
compressed, or with lz4 or zstd. Tables show records per second, and the CPU
time of the client's process, with all its threads, per record.

In each round, the clients of a case run one after the other, each in a separate
process, for --seconds after a warm-up. The benchmark takes about nine minutes
on two cores. It fails (exit code 1) if tailrace has less than this multiple of
the throughput of aiokafka, as the median of the rounds: 1 when each record is
awaited, 1.5 otherwise.
"""

_SPARK = """\
Call handlers on Spark by tailrace.spark.results, and compare each with a
function for Spark's mapInArrow that does the same with msgspec. Both read the
same columns of Spark's Kafka source in the same local session, and write their
rows to Spark's noop sink. CPU time includes Spark and its Python workers.

The benchmark takes about five minutes. It fails (exit code 1) if the median of
the ratios of the throughputs is below 0.95 for a handler that does nothing or
decodes JSON, 0.9 with order_by="key", 0.8 with a row for each record, or 0.5
for a plain function.
"""


class Option(NamedTuple):
    """Option of a command."""

    name: str
    default: Any
    help: str
    metavar: str = "N"
    choices: tuple[Any, ...] | None = None
    is_repeatable: bool = False


class Benchmark(NamedTuple):
    """Command, with its options except ``--json``."""

    summary: str
    description: str
    run: Callable[..., int]
    options: tuple[Option, ...]

    def file_name(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the name of the file for results; it contains the values of options that are not the defaults."""
        settings = (
            f"{one.name}-{values[one.name]}"
            for one in self.options
            if one.name not in _NOT_IN_FILE_NAMES and values[one.name] != one.default
        )
        return "-".join([name, *settings]) + ".json"


def _rounds(default: int = 5) -> Option:
    return Option("rounds", default, "number of rounds, in each of which each client runs once (default: %(default)s)")


def _seconds(default: int = 10) -> Option:
    return Option("seconds", default, "seconds to measure in each run, after a warm-up (default: %(default)s)")


def _records(default: int) -> Option:
    return Option("records", default, "number of records (default: %(default)s)")


def _spark(**options: Any) -> int:
    from benchmarks.spark import spark

    return spark(**options)


_CLIENTS = Option("clients", [], "run only clients whose name contains WORD (repeatable)", "WORD", is_repeatable=True)
_NOT_IN_FILE_NAMES = {"rounds", "seconds", "clients", "records", "ways", "sizes", "codecs"}
_TOPIC = TopicSettings()
_TOPIC_OPTIONS = (
    Option("payload", _TOPIC.payload, "size of each value in bytes (default: %(default)s)", "BYTES"),
    Option("codec", _TOPIC.codec, "compression of the batches (default: %(default)s)", "CODEC", CODECS),
    Option("headers", _TOPIC.headers, "number of headers of each record (default: %(default)s)"),
    Option("partitions", _TOPIC.partitions, "number of partitions (default: %(default)s)"),
    Option("batch", _TOPIC.batch, "number of records in each batch (default: as many as 100 KB hold)", "RECORDS"),
    Option("brokers", 1, "number of brokers, 1 or 3 (default: %(default)s)", choices=(1, 3)),
)

BENCHMARKS = {
    "consume": Benchmark(
        "compare the throughput of consumers",
        _CONSUME,
        partial(compare, "consume"),
        (*_TOPIC_OPTIONS, _rounds(), _seconds(), _CLIENTS),
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
            Option("backlog", BACKLOG_BYTES, "size of the backlog in bytes (default: %(default)s)", "BYTES"),
            _rounds(1),
            _seconds(30),
            _CLIENTS,
        ),
    ),
    "idle": Benchmark(
        "compare clients without records",
        _IDLE,
        idle,
        (Option("partitions", 1_000, "number of partitions (default: %(default)s)"), _rounds(3), _seconds(), _CLIENTS),
    ),
    "start": Benchmark("compare the time to the first record", _START, start, (_rounds(), _CLIENTS)),
    "lanes": Benchmark("measure the cost of order by key", _LANES, lanes, (_records(38_400), _rounds(7))),
    "publish": Benchmark(
        "compare the throughput of producers",
        _PUBLISH,
        publish,
        (
            _rounds(3),
            _seconds(1),
            Option(
                "ways", [], "publish only in ways with WORD in their names (repeatable)", "WORD", is_repeatable=True
            ),
            Option("sizes", [], "size of each value (repeatable; default: 100, 1024)", "BYTES", is_repeatable=True),
            Option("codecs", [], "compression (repeatable; default: none, lz4, zstd)", "CODEC", CODECS, True),
            _CLIENTS,
        ),
    ),
    "rebalance": Benchmark("measure gaps of kept partitions in rebalances", _REBALANCE, rebalance, (_rounds(),)),
    "spark": Benchmark("compare handlers on Spark with mapInArrow", _SPARK, _spark, (_records(1_000_000), _rounds(5))),
}


_READERS_OF_BATCHES = "--clients (5000) --clients async --clients java"

SUITE = (
    "consume",
    "consume --payload 1024 --rounds 3 --seconds 8",
    "handlers --rounds 3 --seconds 5",
    *(
        f"consume --codec {codec} --rounds 2 --seconds 3 {_READERS_OF_BATCHES}"
        for codec in ("lz4", "zstd", "snappy", "gzip")
    ),
    "latency --rounds 2 --seconds 2",
    "memory",
    "consume --partitions 1000 --rounds 2 --seconds 5 --clients async --clients consume(5000) --clients java",
    "idle --rounds 2 --seconds 5",
    "start --rounds 3",
    "pure --rounds 2 --seconds 4",
    "publish",
    "rebalance --rounds 1",
    "spark --rounds 3",
    "consume --payload 10240 --rounds 2 --seconds 4",
    "consume --headers 5 --rounds 2 --seconds 4",
    "consume --batch 10 --rounds 2 --seconds 4 --clients async --clients (5000)",
    "consume --batch 1 --rounds 2 --seconds 4 --clients async --clients (5000)",
    "consume --brokers 3 --rounds 2 --seconds 4",
)
"""Benchmarks of ``scripts/bench all``, the most important ones first."""

_ALL = """\
Run these benchmarks one after another, and continue after a failure. This takes
about an hour; with --minutes, no benchmark starts after that time. Write
docs/performance.md from the results with python docs/performance.py.

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
            is_number = isinstance(option.default, int)
            command.add_argument(
                f"--{option.name}",
                type=(_number if option.name in {"headers", "batch"} else _count) if is_number else str,
                default=option.default,
                metavar=option.metavar,
                choices=option.choices,
                help=option.help,
                **({"action": "append"} if option.is_repeatable else {}),
            )
        command.add_argument(
            "--json",
            dest="path",
            type=Path,
            metavar="PATH",
            help=f"file for results (default: docs/performance/{name}[-SETTINGS].json)",
        )
    all_benchmarks = commands.add_parser(
        "all",
        help="run the benchmarks of docs/performance.md",
        description=_ALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    all_benchmarks.add_argument(
        "--minutes", type=_count, default=24 * 60, metavar="N", help="start no further benchmark after N minutes"
    )
    options = vars(parser.parse_args())
    try:
        if options["benchmark"] == "all":
            return _run_all(options["minutes"])
        return _run(**options)
    except KeyboardInterrupt:
        return 130


def _run_all(minutes: int) -> int:
    """Run the benchmarks of ``SUITE``, each in a separate process; return 0 if none failed, else 1."""
    began, failed = time.monotonic(), 0
    for arguments in SUITE:
        elapsed_min = (time.monotonic() - began) / 60
        is_skipped = elapsed_min >= minutes
        print(f"\n{elapsed_min:.0f} min: {'skipped ' if is_skipped else ''}scripts/bench {arguments}", flush=True)
        if not is_skipped:
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
