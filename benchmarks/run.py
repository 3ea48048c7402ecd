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
    _all_records: int = 0
    _first_at: float | None = None
    _is_warm: bool = False
    _since: tuple[float, float] | None = None
    """Time and CPU time at which the clock was started; None while the clock stands."""
    _seconds: float = 0.0
    _cpu_s: float = 0.0
    _records: int = 0

    def count(self, records: int) -> bool:
        """Count records that were read, and return True if the measured time is over.

        The first call, and the first one after ``stop_clock``, starts the clock.
        """
        now = time.perf_counter()
        self._all_records += records
        if self._first_at is None:
            self._first_at = now
        if self._since is None:
            self._since = now, time.process_time()
        elif self._is_warm:
            self._records += records
        elif now - self._first_at >= WARM_UP_S:
            self._is_warm, self._since = True, (now, time.process_time())
        return self._is_warm and self._seconds + now - self._since[0] >= self.seconds

    def stop_clock(self) -> None:
        """Stop the clock until records are counted again, because the client starts again."""
        if self._since is not None and self._is_warm:
            began_at, cpu_s = self._since
            self._seconds += time.perf_counter() - began_at
            self._cpu_s += time.process_time() - cpu_s
        self._since = None

    def finish(self) -> None:
        """Set the figures of the measured time."""
        self.stop_clock()
        self.set_figures(self._seconds, self._cpu_s, self._records, peak_memory("self"))
        self.figures |= {"read_bytes": self.read_bytes, "all_records": self._all_records}

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
