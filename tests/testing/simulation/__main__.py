"""Command ``scripts/simulate``: run seeds, and print how to replay what has failed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.testing.simulation.scenarios import SCENARIOS, Outcome, run, shrunk


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Run consumers and apps against simulated brokers in virtual time, with faults from a seed.",
    )
    parser.add_argument("--seeds", type=_positive, default=20, metavar="N", help="number of seeds (default: 20)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="first seed (default: 1)")
    parser.add_argument("--seconds", type=_positive, default=120, metavar="S", help="virtual seconds (default: 120)")
    parser.add_argument("--scenario", choices=SCENARIOS, help="one scenario (default: all)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, and print its faults")
    parser.add_argument("--shrink", action="store_true", help="leave out the faults that a failure does not need")
    chosen = parser.parse_args(arguments)
    seeds = [chosen.replay] if chosen.replay is not None else range(chosen.first, chosen.first + chosen.seeds)
    scenarios = [chosen.scenario] if chosen.scenario else list(SCENARIOS)
    failed, records, began = 0, 0, time.perf_counter()
    for seed in seeds:
        for scenario in scenarios:
            outcome = run(seed, scenario, duration_s=chosen.seconds)
            records += outcome.records
            if outcome.violations:
                failed += 1
                if chosen.shrink:
                    outcome = shrunk(outcome, outcome.violations[0].promise, duration_s=chosen.seconds)
                _show(outcome, chosen.seconds)
            elif chosen.replay is not None:
                _show(outcome, chosen.seconds)
        _progress(f"seed {seed}: {records} records, {failed} failures, {time.perf_counter() - began:.0f} s")
    _progress("")
    runs = len(seeds) * len(scenarios)
    _write(f"{runs} runs of {chosen.seconds} virtual seconds, {records} records: {failed or 'no'} failures")
    return 1 if failed else 0


def _show(outcome: Outcome, seconds: int) -> None:
    _progress("")
    _write(f"\nseed {outcome.seed}, {outcome.scenario}: {outcome.records} records, {outcome.repeats} repeated")
    for fault in outcome.faults:
        _write(f"  {fault}")
    for one in outcome.violations[:10]:
        _write(f"  {one.promise} at {one.at - 1_000:.2f} s: {one.text}")
    if outcome.violations:
        _write(
            f'  replay: scripts/simulate --replay {outcome.seed} --scenario "{outcome.scenario}" --seconds {seconds}'
        )
    _write(f"  trace: {outcome.trace}")


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


if __name__ == "__main__":
    sys.exit(main())
