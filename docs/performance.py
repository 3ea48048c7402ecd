"""Write docs/performance.md and its charts from the results in docs/performance: python docs/performance.py."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

PAGE = Path(__file__).parent / "performance.md"
RESULTS = Path(__file__).parent / "performance"

OURS = "tailrace"
LEAST_DIFFERENCE = 1.05
"""Ratio from which on another client counts as better."""

OPENING = """\
# Performance

Throughput, latency, memory and CPU time of tailrace and other clients. [`scripts/bench`](../CONTRIBUTING.md#measure)
measures them, and `python docs/performance.py` writes this page from the [results](performance). Compare figures only
within a table: other machines, brokers and records give other figures.

The broker and the clients run on the same machine. Each client has a process of its own, its default options and a new
group. Clients take turns, in another order in each round. Tables show the median of the rounds and the spread, which is
the highest minus the lowest value, divided by the median. CPU time is that of the client's process with all its
threads. Memory is the peak of resident memory, or for idle consumers the resident memory at the end.

Throughput and latency are measured after a warm-up of two seconds; the warm-up of Java's tool is at most a quarter of
its run. Unless a heading says otherwise, records have a key and a value of 100 B, and are in uncompressed batches of
about 100 KB, in 4 partitions.

| way to read | meaning |
|---|---|
| `async for` | records one by one |
| `getmany(5000)`, `consume(5000)` | up to 5,000 records per call |
| `arrow_batches(5000)` | Arrow record batches of up to 5,000 records |
| `handler`, `bytes handler` | a function is called with the value of each record |
| `typed handler` | as `handler`, with values decoded from JSON |
| `batch handler(500)` | a function is called with the values of up to 500 records |
| `acknowledged` | FastStream at least once, like tailrace; its default also commits records that are not handled yet |
| `check.crcs` | confluent-kafka with checksums verified, as tailrace and aiokafka do by default |
| `ConsumerPerformance` | Kafka's `kafka-consumer-perf-test`: counts records and bytes, and verifies no checksums |
| `pure Python` | tailrace without its compiled module |
"""

COUNTERPARTS = {
    "async for": "async for",
    "getmany(5000)": "getmany(5000)",
    "consume(5000)": "getmany(5000)",
    "consume(5000), check.crcs": "getmany(5000)",
    "ConsumerPerformance": "getmany(5000)",
    "handler": "handler",
    "bytes handler": "bytes handler",
    "typed handler": "typed handler",
    "bytes, acknowledged": "bytes handler",
    "typed, acknowledged": "typed handler",
    "batch handler(500)": "batch handler(500)",
    "getmany(500)": "getmany(500)",
    "poll()": "async for",
}
"""Way to read with tailrace that a way of another client is compared with."""


# ---- results ---------------------------------------------------------------------------------------------------------


class Measure(NamedTuple):
    """Figure of a row.

    Attributes:
        name: heading.
        of: returns the figure of a row.
        text: formats it.
        is_high_better: True for rates.
    """

    name: str
    of: Callable[[dict[str, Any]], float]
    text: Callable[[float], str]
    is_high_better: bool = False


def rate(value: float) -> str:
    """Format a rate with three significant digits, such as ``1.59 M`` or ``223 k``."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{value:.0f}"


def megabytes(value: float) -> str:
    """Format a size in bytes."""
    return f"{value / 1e6:,.0f} MB"


def milliseconds(value: float) -> str:
    """Format a time in milliseconds."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def microseconds(value: float) -> str:
    """Format a time in microseconds."""
    return f"{value:,.0f} µs" if value >= 100 else f"{value:.2f} µs"


def percent(value: float) -> str:
    """Format a share."""
    return f"{value:.1%}"


def median_of(name: str) -> Callable[[dict[str, Any]], float]:
    """Return a function that returns the median of a figure of a row."""
    return lambda row: row[name]["median"]


THROUGHPUT = [
    Measure("records/s", lambda row: row["records_per_s"], rate, is_high_better=True),
    Measure("CPU per record", lambda row: row["cpu_us_per_record"], microseconds),
    Measure("memory", lambda row: row["max_rss_bytes"], megabytes),
]
MEASURES = {
    "consume": THROUGHPUT,
    "handlers": THROUGHPUT,
    "latency": [
        Measure("p50", median_of("p50_ms"), milliseconds),
        Measure("p99", median_of("p99_ms"), milliseconds),
    ],
    "memory": [Measure("peak memory", median_of("peak_rss_bytes"), megabytes)],
    "idle": [
        Measure("CPU of a core", median_of("cpu_share"), percent),
        Measure("memory", median_of("rss_bytes"), megabytes),
    ],
    "start": [Measure("start to first record", median_of("seconds"), lambda value: f"{value:.2f} s")],
    "publish": THROUGHPUT,
}
"""Compared figures by benchmark, in the order of the columns."""


class Result(NamedTuple):
    """Result of a run of ``scripts/bench``."""

    name: str
    """Name of its file, without the suffix."""
    content: dict[str, Any]

    @property
    def benchmark(self) -> str:
        """Name of the command."""
        return self.content["benchmark"]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run."""
        return self.content["settings"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Figures of each client."""
        return self.content["rows"]

    @property
    def title(self) -> str:
        """Settings in words."""
        settings = self.settings
        if self.benchmark != "consume":
            return self.benchmark
        parts = [f"{settings['payload']:,} B", settings["codec"] if settings["codec"] != "none" else "uncompressed"]
        parts += [f"{settings['headers']} headers"] if settings["headers"] else []
        parts += ["1 partition" if settings["partitions"] == 1 else f"{settings['partitions']:,} partitions"]
        per_batch = settings.get("batch", 0)
        parts += ["batches of 1 record" if per_batch == 1 else f"batches of {per_batch} records"] if per_batch else []
        parts += [f"{settings['brokers']} brokers"] if settings["brokers"] > 1 else []
        return ", ".join(parts)

    @property
    def how(self) -> str:
        """Rounds and duration in words, with the command."""
        rounds, seconds = self.settings["rounds"], self.settings.get("seconds")
        times = "1 round" if rounds == 1 else f"{rounds} rounds"
        return f"{times} of {seconds:g} s" if seconds else times


def results(folder: Path) -> list[Result]:
    """Return the results of a folder; those of consumers by settings, starting with the defaults."""

    def place(result: Result) -> tuple[object, ...]:
        if result.benchmark != "consume":
            return (0,)
        one = result.settings
        codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
        return (
            one["brokers"],
            -one.get("batch", 0) if one.get("batch", 0) else -math.inf,
            one["partitions"] != 4,
            one["partitions"],
            one["headers"],
            codecs.index(one["codec"]),
            one["payload"],
        )

    found = [Result(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=place)


class Difference(NamedTuple):
    """Figure of another client that is better than that of tailrace."""

    benchmark: str
    measure: Measure
    client: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Other client's figure divided by that of tailrace."""
        return self.theirs / max(self.ours, 1e-9)


def case_of(result: Result, row: dict[str, Any]) -> str:
    """Return the benchmark and the case of a row in words."""
    match result.benchmark:
        case "consume":
            return f"consume, {result.title}"
        case "latency":
            return f"latency, {row['rate']:,}/s" + (", busy loop" if row["is_busy"] else "")
        case "publish":
            return f"publish {row['way']}, {row['size']:,} B, {codec_of(row)}"
        case name:
            return name


def codec_of(row: dict[str, Any]) -> str:
    """Return the compression of a row of producers in words."""
    return "uncompressed" if row["codec"] == "none" else row["codec"]


def differences(found: Sequence[Result]) -> Iterator[Difference]:
    """Yield the figures in which another client is better than tailrace, read or written the same way."""
    for result in found:
        for row in result.rows if result.benchmark in MEASURES else ():
            package, _, how = row["client"].partition(" ")
            if package == OURS:
                continue
            counterpart = f"{OURS} {COUNTERPARTS[how]}" if how in COUNTERPARTS else OURS
            case = case_of(result, row)
            ours = next(
                (one for one in result.rows if (one["client"], case_of(result, one)) == (counterpart, case)), None
            )
            for measure in MEASURES[result.benchmark] if ours else ():
                of_ours, of_theirs = measure.of(ours), measure.of(row)
                ratio = of_theirs / of_ours if measure.is_high_better else of_ours / max(of_theirs, 1e-9)
                if ratio >= LEAST_DIFFERENCE:
                    yield Difference(case, measure, row["client"], of_ours, of_theirs)


# ---- charts ----------------------------------------------------------------------------------------------------------

WIDTH, LABEL, RIGHT, ROW, TOP, BOTTOM = 800, 300, 90, 26, 44, 34
"""Sizes of charts in pixels: labels are to the left, figures to the right."""

STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.page { fill: #ffffff } .small { fill: #59636e; font-size: 12px } .ours, .title { font-weight: 600 }
.grid { stroke: #d1d9e0; stroke-width: 1 } .spread { stroke: #1f2328; stroke-width: 1.5; fill: none }
.c0 { fill: #0969da; stroke: #0969da } .c1 { fill: #8c959f; stroke: #8c959f } .c2 { fill: #bc4c00; stroke: #bc4c00 }
.c3 { fill: #1a7f37; stroke: #1a7f37 } .c4 { fill: #8250df; stroke: #8250df } .line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .page { fill: #0d1117 } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.spread { stroke: #f0f6fc }
.c0 { fill: #4493f8; stroke: #4493f8 } .c1 { fill: #6e7681; stroke: #6e7681 } .c2 { fill: #db6d28; stroke: #db6d28 }
.c3 { fill: #3fb950; stroke: #3fb950 } .c4 { fill: #ab7df8; stroke: #ab7df8 } .line { fill: none }
}"""
"""Colors of both themes; the page has a background, so that text is readable where an image follows another theme."""


LINE_COLORS = ("c0", "c3", "c2", "c4", "c1")


class Bar(NamedTuple):
    """Bar of a chart, from ``lowest`` to ``highest`` of the rounds."""

    label: str
    value: float
    lowest: float
    highest: float


def label(x: float, y: float, text: str, *, style: str = "", anchor: str = "start") -> str:
    """Return a text; names of tailrace are bold."""
    style = style or ("ours" if text.startswith(OURS) else "plain")
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(title: str, height: float, body: Sequence[str]) -> str:
    """Return a chart."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="6"/>',
            label(16, 26, title, style="title"),
            *body,
            "</svg>\n",
        ]
    )


def bars(title: str, rows: Sequence[Bar], text: Callable[[float], str]) -> str:
    """Return a chart of horizontal bars, the longest first, with the spread of the rounds."""
    scale = (WIDTH - LABEL - RIGHT) / (max(bar.highest for bar in rows) or 1)
    body = []
    for number, bar in enumerate(sorted(rows, key=lambda bar: -bar.value)):
        y = TOP + number * ROW
        color = "c0" if bar.label.startswith(OURS) else "c1"
        low, high = (LABEL + value * scale for value in (bar.lowest, bar.highest))
        middle, width = y + ROW / 2 - 3, max(bar.value * scale, 1)
        body += [
            label(LABEL - 10, y + 14, bar.label, anchor="end"),
            f'<rect class="{color}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{ROW - 6}" style="stroke:none"/>',
            f'<path class="spread" d="M{low:.1f} {middle - 4:g}v8m0 -4H{high:.1f}m0 -4v8"/>',
            label(max(high, LABEL + width) + 8, y + 14, text(bar.value)),
        ]
    return svg(title, TOP + len(rows) * ROW + 10, body)


def ranges(title: str, rows: Sequence[tuple[str, float, float]], text: Callable[[float], str]) -> str:
    """Return a chart with a line from the first to the second figure of each row, on a logarithmic scale."""
    low, high = (math.log10(value) for value in (min(row[1] for row in rows), max(row[2] for row in rows)))
    first, last = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    bottom = TOP + len(rows) * ROW

    def x(value: float) -> float:
        return LABEL + (math.log10(value) - first) / (last - first) * (WIDTH - LABEL - RIGHT)

    body = []
    for power in range(first, last + 1):
        at = x(10**power)
        body += [
            f'<path class="grid" d="M{at:.1f} {TOP - 6}V{bottom}"/>',
            label(at, bottom + 18, f"{10**power:,g} ms", style="small", anchor="middle"),
        ]
    for number, (name, begin, end) in enumerate(rows):
        y = TOP + number * ROW + 8
        color = "c0" if name.startswith(OURS) else "c1"
        body += [
            label(LABEL - 10, y + 5, name, anchor="end"),
            f'<path class="{color}" stroke-width="3" d="M{x(begin):.1f} {y}H{x(end):.1f}"/>',
            f'<circle class="{color}" cx="{x(begin):.1f}" cy="{y}" r="4"/>',
            f'<circle class="{color}" cx="{x(end):.1f}" cy="{y}" r="6"/>',
            label(x(end) + 12, y + 5, text(end)),
        ]
    return svg(title, bottom + BOTTOM, body)


def lines(title: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """Return a chart of lines over time, with their names to the right."""
    left, right, height = 70, 190, 260
    longest = max(x for points in series.values() for x, _ in points)
    highest = max(y for points in series.values() for _, y in points) * 1.05
    step = 10 ** math.floor(math.log10(highest))
    step = step / 4 if highest / step < 3 else step

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / longest * (WIDTH - left - right), TOP + height * (1 - y / highest)

    body = []
    for number in range(int(highest / step) + 1):
        _, y = place(0, number * step)
        body += [
            f'<path class="grid" d="M{left} {y:.1f}H{WIDTH - right}"/>',
            label(left - 8, y + 4, f"{number * step:g}", style="small", anchor="end"),
        ]
    body += [
        label(left, TOP + height + 20, "0 s", style="small"),
        label(WIDTH - right, TOP + height + 20, f"{longest:.0f} s", style="small", anchor="end"),
    ]
    names = sorted(series, key=lambda name: -series[name][-1][1])
    label_at = -math.inf
    for name in names:
        color = LINE_COLORS[list(series).index(name) % len(LINE_COLORS)]
        points = [place(x, y) for x, y in series[name]]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        # Names of lines that end close together are moved apart.
        label_at = max(points[-1][1] + 4, label_at + 17)
        body += [
            f'<path class="{color} line" d="M{path}" style="fill:none"/>',
            label(WIDTH - right + 26, label_at, name),
            f'<path class="{color}" stroke-width="3" d="M{WIDTH - right + 8} {label_at - 4:.1f}h12"/>',
        ]
    return svg(title, TOP + height + BOTTOM, body)


# ---- page ------------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its columns are aligned to the right, except the first."""
    lines_of = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines_of, *(f"| {' | '.join(row)} |" for row in rows)])


def named(client: str) -> str:
    """Return a client's name, in bold for tailrace."""
    return f"**{client}**" if client.startswith(OURS) else client


def picture(name: str, text: str) -> str:
    """Return the line that shows a chart."""
    return f"![{text}](performance/{name}.svg)"


def spread(one: dict[str, float]) -> str:
    """Return the spread of the rounds, relative to the median."""
    return f"{(one['highest'] - one['lowest']) / one['median']:.0%}" if one["median"] else "-"


def throughput(result: Result) -> tuple[str, dict[str, str]]:
    """Return text and charts of a throughput comparison."""
    rows = sorted(result.rows, key=lambda row: -row["records_per_s"])
    baseline = "aiokafka async for" if result.benchmark != "handlers" else "faststream bytes handler"
    base = next((row["records_per_s"] for row in rows if row["client"] == baseline), None)
    shown = table(
        ["client", "version", "records/s", "spread", "CPU per record", "memory", f"ratio to {baseline}"],
        [
            [
                named(row["client"]),
                row["version"],
                rate(row["records_per_s"]),
                f"{(row['highest'] - row['lowest']) / row['records_per_s']:.0%}",
                microseconds(row["cpu_us_per_record"]),
                megabytes(row["max_rss_bytes"]),
                f"{row['records_per_s'] / base:.2f}" if base else "-",
            ]
            for row in rows
        ],
    )
    title = f"Records per second: {result.title}" if result.benchmark == "consume" else "Records per second"
    chart = bars(title, [Bar(row["client"], row["records_per_s"], row["lowest"], row["highest"]) for row in rows], rate)
    text = ", ".join(f"{row['client']} {rate(row['records_per_s'])}" for row in rows[:3])
    return f"{picture(result.name, f'{title}: {text}, …')}\n\n{shown}", {result.name: chart}


def overview(found: Sequence[Result]) -> str:
    """Return the table of throughputs by settings."""
    clients = [
        "tailrace async for",
        "tailrace getmany(5000)",
        "aiokafka getmany(5000)",
        "confluent-kafka consume(5000)",
        "java ConsumerPerformance",
    ]
    rows = []
    for result in found:
        speeds = {row["client"]: row["records_per_s"] for row in result.rows}
        rows.append([result.title, *(rate(speeds[name]) if name in speeds else "-" for name in clients)])
    return table(["records", *map(named, clients)], rows)


def latency(result: Result) -> tuple[str, dict[str, str]]:
    """Return text and charts of the latencies."""
    settings, parts, charts = result.settings, [], {}
    text = (
        f"Time from a producer in another process (`linger.ms=0`, {settings['payload']} B) to the client. The busy loop"
        f" is a task in the event loop of the client that computes for {settings['busy_ms']:g} ms and sleeps for"
        f" {settings['free_ms']:g} ms, again and again. For `poll()`, it is a thread, as there is no event loop."
    )
    parts.append(fill(text, 120))
    for is_busy, per_s in sorted({(row["is_busy"], row["rate"]) for row in result.rows}):
        rows = [row for row in result.rows if (row["rate"], row["is_busy"]) == (per_s, is_busy)]
        name = f"{result.name}-{per_s}" + ("-busy" if is_busy else "")
        title = f"Latency, p50 to p99: {per_s:,} records/s" + (", busy loop" if is_busy else "")
        points = [(row["client"], row["p50_ms"]["median"], row["p99_ms"]["median"]) for row in rows]
        charts[name] = ranges(title, points, milliseconds)
        text = ", ".join(f"{client} {milliseconds(end)}" for client, _, end in points)
        shown = table(
            ["client", "version", "p50", "spread", "p99", "spread"],
            [
                [
                    named(row["client"]),
                    row["version"],
                    milliseconds(row["p50_ms"]["median"]),
                    spread(row["p50_ms"]),
                    milliseconds(row["p99_ms"]["median"]),
                    spread(row["p99_ms"]),
                ]
                for row in rows
            ],
        )
        parts += [
            f"### {per_s:,} records/s{', busy loop' if is_busy else ''}",
            picture(name, f"{title}: {text}"),
            shown,
        ]
    return "\n\n".join(parts), charts


def memory(result: Result) -> tuple[str, dict[str, str]]:
    """Return text and chart of memory over time."""
    settings = result.settings
    chart = lines(
        "Memory in MB, in front of a backlog",
        {row["client"]: [(x, y / 1e6) for x, y in row["runs"][0]["samples"]] for row in result.rows},
    )
    shown = table(
        ["client", "version", "peak memory", "growth", "flat"],
        [
            [
                named(row["client"]),
                row["version"],
                megabytes(row["peak_rss_bytes"]["median"]),
                f"{row['growth']['median']:.2f}",
                "yes" if row["is_flat"] else "no",
            ]
            for row in result.rows
        ],
    )
    text = (
        f"Clients read a backlog of {settings['backlog_bytes'] / 1e9:g} GB ({settings['records']:,} records of"
        f" {settings['payload']:,} B), and sleep for {settings['sleep_ms']:g} ms per record. Growth is the highest"
        " memory in the last quarter of the run, divided by that in the second quarter; up to 1.1 counts as flat."
    )
    alt = ", ".join(f"{row['client']} {megabytes(row['peak_rss_bytes']['median'])}" for row in result.rows)
    return f"{fill(text, 120)}\n\n{picture(result.name, f'Memory over time; peaks: {alt}')}\n\n{shown}", {
        result.name: chart
    }


def figures(result: Result) -> tuple[str, dict[str, str]]:
    """Return text and chart of a benchmark with one row per client."""
    measures = MEASURES[result.benchmark]
    names = {"cpu_share": "cpu_share", "seconds": "seconds"}
    key = next(name for name in names if name in result.rows[0])
    title = {"cpu_share": "CPU of a core", "seconds": "Seconds from the start of the process to the first record"}[key]
    chart = bars(
        title,
        [Bar(row["client"], *(row[key][of] for of in ("median", "lowest", "highest"))) for row in result.rows],
        measures[0].text,
    )
    shown = table(
        ["client", "version", *(name for measure in measures for name in (measure.name, "spread"))],
        [
            [
                named(row["client"]),
                row["version"],
                *(
                    text
                    for measure, name in zip(measures, (key, "rss_bytes"), strict=False)
                    for text in (measure.text(measure.of(row)), spread(row[name]))
                ),
            ]
            for row in result.rows
        ],
    )
    alt = ", ".join(f"{row['client']} {measures[0].text(measures[0].of(row))}" for row in result.rows)
    intro = (
        f"Clients wait for records of {result.settings['partitions']:,} assigned partitions.\n\n"
        if result.benchmark == "idle"
        else "Time from the start of the process to its first record; files of packages are in the page cache.\n\n"
    )
    return f"{intro}{picture(result.name, f'{title}: {alt}')}\n\n{shown}", {result.name: chart}


def publish(result: Result) -> tuple[str, dict[str, str]]:
    """Return text of the producers."""
    clients = list(dict.fromkeys(row["client"] for row in result.rows))
    found = {(row["way"], row["size"], row["codec"], row["client"]): row for row in result.rows}
    promises = {(one["way"], one["size"], one["codec"]): one for one in result.content["promises"]}
    text = (
        "Idempotent producers, in transactions transactional ones. The program awaits each record (one by one) or 1,000"
        " records at a time (by 1,000), flushes only at the end (not awaited), or commits transactions of 1,000"
        " records. aiokafka has `max_batch_size=262144`, as tailrace has by default. confluent-kafka has its defaults,"
        " `linger.ms=0` one by one, and in `AIOProducer` a `flush()` before records are awaited, which are otherwise"
        " passed on after a second. Values look like JSON. Cells have records per second and CPU time per record. The"
        " ratio to aiokafka is the median of the ratios of the rounds."
    )
    parts = [fill(text, 120)]
    if missed := [one for one in promises.values() if not one["holds"]]:
        parts.append(
            fill(f"Missed: {len(missed)} of {len(promises)} ratios are below what the benchmark requires.", 120)
        )
    versions = {row["client"]: row["version"] for row in result.rows}
    for size, codec in dict.fromkeys((row["size"], row["codec"]) for row in result.rows):
        ways = list(dict.fromkeys(row["way"] for row in result.rows))
        shown = []
        for way in ways:
            rows = [found.get((way, size, codec, client)) for client in clients]
            promise = promises.get((way, size, codec))
            shown.append(
                [
                    way,
                    *(
                        f"{rate(row['records_per_s'])}, {microseconds(row['cpu_us_per_record'])}" if row else "-"
                        for row in rows
                    ),
                    *([f"{promise['measured']:.2f}", f"{promise['at_least']:.1f}"] if promise else ["-", "-"]),
                ]
            )
        header = [*(f"{named(client)} {versions[client]}" for client in clients), "ratio to aiokafka", "required"]
        parts.append(f"### {size:,} B, {'uncompressed' if codec == 'none' else codec}")
        parts.append(table(["records/s, CPU per record", *header], shown))
    return "\n\n".join(parts), {}


def rebalance(result: Result) -> tuple[str, dict[str, str]]:
    """Return text of the gaps."""
    shown = table(
        ["group protocol", "while a member joins", "without a rebalance"],
        [
            [
                row["protocol"] + (", another member takes 5 s for a record" if row["drains"] else ""),
                milliseconds(row["gap_s"] * 1000),
                milliseconds(row["quiet_gap_s"] * 1000),
            ]
            for row in result.rows
        ],
    )
    text = (
        "Longest time between two records of a partition that stays assigned to its member, with tailrace: while"
        " another member joins, and in a period of the same length without a rebalance. Records are produced"
        " continuously."
    )
    return f"{fill(text, 120)}\n\n{shown}", {}


def spark(result: Result) -> tuple[str, dict[str, str]]:
    """Return text of the handlers on Spark."""
    shown = table(
        ["handler", "`mapInArrow`", "**tailrace**", "ratio", "required", "CPU ratio"],
        [
            [
                row["case"],
                *(f"{rate(row[way])}, {microseconds(row[f'{way}, CPU'])}" for way in ("mapInArrow", "tailrace")),
                f"{row['ratio']:.2f}",
                f"{row['promised']:g}",
                f"{row['CPU ratio']:.2f}",
            ]
            for row in result.rows
        ],
    )
    text = (
        "Handlers as expressions (`tailrace.spark.results`), and functions for Spark's `mapInArrow` that do the same by"
        " hand, with msgspec. Both read the same columns of Spark's Kafka source in one local session, and write to"
        " Spark's `noop` sink. Cells have records per second and CPU time per record, which includes Spark and its"
        " Python workers. Ratios are medians of the rounds; a ratio of 1 is as fast as `mapInArrow`."
    )
    missed = [row for row in result.rows if row["ratio"] < row["promised"]]
    parts = [fill(text, 120)]
    if missed:
        parts.append(f"Missed: {len(missed)} of {len(result.rows)} ratios are below what the benchmark requires.")
    return "\n\n".join([*parts, shown]), {}


class Section(NamedTuple):
    """Section of the page, with one or several results."""

    benchmark: str
    title: str
    write: Callable[[Result], tuple[str, dict[str, str]]]


SECTIONS = [
    Section("consume", "Consumers", throughput),
    Section("handlers", "Handlers that do nothing", throughput),
    Section("pure", "Without the compiled module", throughput),
    Section("latency", "Latency", latency),
    Section("memory", "Memory", memory),
    Section("idle", "Idle consumers", figures),
    Section("start", "Start", figures),
    Section("publish", "Producers", publish),
    Section("rebalance", "Rebalances", rebalance),
    Section("spark", "Spark", spark),
]


def machine(found: Sequence[Result]) -> str:
    """Return the table of machines and dates."""
    facts: dict[tuple[str, ...], list[str]] = {}
    for result in found:
        one = result.content["machine"]
        key = (
            one["date"],
            f"{one['cpus']} x {one['model']}",
            one["system"],
            one["python"],
            one["kafka"],
            one["log_folder"],
        )
        facts.setdefault(key, []).append(result.name)
    return table(
        ["results", "date", "cores", "system", "Python", "Kafka", "broker's log in"],
        [[", ".join(names), *key] for key, names in sorted(facts.items())],
    )


def losses(found: Sequence[Result]) -> str:
    """Return the section on figures in which another client is better."""
    worst = sorted(differences(found), key=lambda one: -abs(math.log(max(one.ratio, 1e-9))))
    intro = (
        "All figures in which another client is better than tailrace by at least 5 %, the largest difference first,"
        " except those without the compiled module. A client is compared with tailrace for the same way to read or"
        " publish; `consume(5000)` and Java's tool are compared with `getmany(5000)`, and `poll()` with `async for`."
    )
    if not worst:
        return "No figure on this page.\n"
    rows = [
        [
            one.benchmark,
            one.measure.name,
            one.client,
            one.measure.text(one.theirs),
            one.measure.text(one.ours),
            f"{one.ratio if one.ratio > 1 else 1 / max(one.ratio, 1e-9):.1f}",
        ]
        for one in worst
    ]
    header = ["benchmark", "figure", "other client", "its value", "tailrace", "factor"]
    return f"{fill(intro, 120)}\n\n{table(header, rows)}\n"


def written(folder: Path = RESULTS) -> tuple[str, dict[str, str]]:
    """Return the page and the charts by name."""
    found = results(folder)
    if not found:
        return "# Performance\n\nThere are no results yet: run `scripts/bench all`.\n", {}
    parts = [OPENING, f"{machine(found)}\n", "## Where other clients are better\n", losses(found)]
    charts: dict[str, str] = {}
    for section in SECTIONS:
        of_section = [result for result in found if result.benchmark == section.benchmark]
        if of_section:
            parts.append(f"## {section.title}\n")
        if len(of_section) > 1:
            parts.append(f"Records per second, by kind of records; `-`: not measured.\n\n{overview(of_section)}\n")
        for result in of_section:
            text, drawn = section.write(result)
            charts |= drawn
            if section.benchmark == "consume":
                parts.append(f"### {result.title[0].upper()}{result.title[1:]}\n")
            parts.append(f"{text}\n\n{result.how}; [JSON](performance/{result.name}.json)\n")
    return "\n".join(parts), charts


def main() -> None:
    """Write the page and the charts, and remove charts without a result."""
    before = PAGE.read_text() if PAGE.exists() else ""
    page, charts = written()
    PAGE.write_text(page)
    for old in RESULTS.glob("*.svg"):
        if old.stem not in charts:
            old.unlink()
    for name, chart in charts.items():
        (RESULTS / f"{name}.svg").write_text(chart)
    sys.stderr.write(f"{PAGE}: {'unchanged' if page == before else 'updated'}\n")


if __name__ == "__main__":
    main()
