"""Measurement of one run of a client, inside its process."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

WARM_UP_S = 2.0
"""Time from the first record to the start of the measurement."""


@dataclass
class Run:
    """Topic to read, and measurement of the records that are read.

    Attributes:
        bootstrap_servers: addresses of the brokers.
        topic: topic to read.
        group: name of the group.
        records: number of records in the topic.
        seconds: time to measure, after the warm-up.
        read_bytes: size of all values that were read.
        figures: results, set by ``finish`` or ``set_figures``.
    """

    bootstrap_servers: str
    topic: str
    group: str
    records: int
    seconds: float
    read_bytes: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    _read_records: int = 0
    _first_at: float | None = None
    _measured_from: tuple[float, float, int] | None = None

    def count(self, records: int) -> bool:
        """Count records that were read, and return True if the measured time is over."""
        now = time.perf_counter()
        self._read_records += records
        if self._first_at is None:
            self._first_at = now
        if self._measured_from is None:
            if now - self._first_at >= WARM_UP_S:
                self._measured_from = now, time.process_time(), self._read_records
            return False
        return now - self._measured_from[0] >= self.seconds

    @property
    def unread_records(self) -> int:
        """Number of records that were not read yet; negative if the topic is read for the second time."""
        return self.records - self._read_records

    def finish(self) -> None:
        """Set the figures of the measured time.

        Raises:
            AssertionError: the warm-up is not over, because the topic is too small.
        """
        if self._measured_from is None:
            raise AssertionError(f"{self.records} records were read within the warm-up")
        began_at, cpu_s, records = self._measured_from
        self.set_figures(
            time.perf_counter() - began_at,
            time.process_time() - cpu_s,
            self._read_records - records,
            peak_memory("self"),
        )
        self.figures |= {"read_bytes": self.read_bytes, "all_records": self._read_records}

    def set_figures(self, seconds: float, cpu_s: float, records: int, max_rss_bytes: int) -> None:
        """Compute the figures from measured values."""
        self.figures = {
            "seconds": seconds,
            "records": records,
            "records_per_s": records / seconds,
            "cpu_s": cpu_s,
            "cpu_us_per_record": cpu_s / records * 1e6,
            "max_rss_bytes": max_rss_bytes,
        }


def peak_memory(process: int | str) -> int:
    """Return the peak memory of a process, given by its id or ``"self"``, in bytes."""
    status = Path(f"/proc/{process}/status")
    if status.exists():
        # On Linux, ru_maxrss is inherited from the parent process.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF if process == "self" else resource.RUSAGE_CHILDREN).ru_maxrss
