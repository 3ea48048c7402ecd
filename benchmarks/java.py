"""Java's consumer, run by Kafka's tool ``kafka-consumer-perf-test``.

The tool reads a topic once and prints its progress at intervals. The lines of the warm-up are not part of the figures.
"""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from typing import NamedTuple

import psutil

from benchmarks.run import WARM_UP_S, Run, peak_memory
from tailrace.embedded import jars
from tailrace.embedded.jars import find_java

_TOOLS = (f"org.apache.kafka:kafka-tools:{jars.KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_MAIN = "org.apache.kafka.tools.ConsumerPerformance"
_INTERVAL_MS = 250
_RECORDS_COLUMN = 4


class _Report(NamedTuple):
    """Progress of the tool: time of day, CPU time of the process, and number of records read so far."""

    at_s: float
    cpu_s: float
    records: int


def consumer_performance(run: Run) -> None:
    """Run kafka-consumer-perf-test with its default options on the topic, and set the figures of ``run``."""
    command = [str(find_java()), "-Xmx512m", "-cp", os.pathsep.join(map(str, jars.class_path(*_TOOLS)))]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", _MAIN]
    command += ["--bootstrap-server", run.bootstrap_servers, "--topic", run.topic, "--group", run.group]
    command += ["--num-records", str(run.records), "--timeout", "10000"]
    command += ["--show-detailed-stats", "--hide-header", "--reporting-interval", str(_INTERVAL_MS)]
    command += ["--date-format", "HH:mm:ss.SSS"]
    reports: list[_Report] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        watched = psutil.Process(tool.pid)
        peak = 0
        for line in tool.stdout or ():
            columns = line.split(",")
            if len(columns) <= _RECORDS_COLUMN or not columns[_RECORDS_COLUMN].strip().isdecimal():
                continue
            times = watched.cpu_times()
            records = int(columns[_RECORDS_COLUMN])
            reports.append(_Report(_seconds(columns[0]), times.user + times.system, records))
            peak = max(peak, peak_memory(tool.pid))
            if reports[-1].at_s - reports[0].at_s >= WARM_UP_S + run.seconds:
                break
        tool.kill()
    _check(reports)
    # If the topic was read within the time of the warm-up, a quarter of this time is the warm-up.
    warm_up_s = min(WARM_UP_S, (reports[-1].at_s - reports[0].at_s) / 4)
    first = next(one for one in reports if one.at_s - reports[0].at_s >= warm_up_s)
    last = reports[-1]
    run.set_figures(last.at_s - first.at_s, last.cpu_s - first.cpu_s, last.records - first.records, peak)


def _seconds(time_of_day: str) -> float:
    hours, minutes, seconds = time_of_day.strip().split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _check(reports: list[_Report]) -> None:
    if len(reports) < 4:
        raise AssertionError(f"the tool printed only {len(reports)} lines: the topic is too small")
    if any(later.at_s < earlier.at_s for earlier, later in pairwise(reports)):
        raise AssertionError("the clock passed midnight during the run, and the tool prints no dates - run it again")
