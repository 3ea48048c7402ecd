"""Run the compatibility suite on brokers, and record the outcomes in docs/compatibility.json."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace.errors import KafkaNotAvailableError
from tests.support.compatibility.brokers import RELEASES, expected_refusals, running_broker
from tests.support.compatibility.capabilities import Cluster, Outcome, examine, expected_results
from tests.support.compatibility.engines import ENGINES
from tests.support.compatibility.services import SERVICES, running_service

RESULTS = Path(__file__).parents[3] / "docs" / "compatibility.json"


def main() -> int:
    """Examine the brokers that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/brokers", description=__doc__)
    known = [*RELEASES, *ENGINES, *SERVICES]
    parser.add_argument("brokers", metavar="BROKER", nargs="*", help=f"{', '.join(known)} (default: all)")
    names = parser.parse_args().brokers or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown brokers: {', '.join(unknown)}; known are {', '.join(known)}")
    # Capabilities cause errors on purpose.
    logging.getLogger("tailrace").addHandler(logging.NullHandler())
    logging.getLogger("tailrace").propagate = False
    surprises: list[str] = []
    for name in names:
        sys.stderr.write(f"{name}\n")
        began = time.monotonic()
        try:
            if name in RELEASES:
                outcomes, facts = examine_release(name), {"version": RELEASES[name]}
                expected = expected_results(expected_refusals(name))
            elif name in ENGINES:
                engine = ENGINES[name]
                with engine.running() as cluster:
                    outcomes = asyncio.run(examine(cluster))
                facts = {"version": engine.version, "source": engine.source, "kind": "engine"}
                expected = expected_results(engine.refused, engine.fails)
                # The known reason instead of an error that names topics of this run.
                outcomes |= {one: replace(outcomes[one], error=reason) for one, reason in engine.fails.items()}
            else:
                service = SERVICES[name]
                outcomes = examine_service(name)
                facts = {"version": service.version, "source": service.source, "kind": "service"}
                expected = expected_results(service.refused)
        except KafkaNotAvailableError as error:
            surprises.append(f"{name} was not tried: {error}")
            continue
        record(name, outcomes, {**facts, "seconds": round(time.monotonic() - began)})
        surprises += unexpected(name, outcomes, expected)
    for surprise in surprises:
        sys.stderr.write(f"{surprise}\n")
    return 1 if surprises else 0


def examine_release(name: str) -> dict[str, Outcome]:
    """Run the suite on a release of Apache Kafka, and return the outcomes by capability."""
    with running_broker(name) as address:
        return asyncio.run(examine(Cluster(address, address)))


def examine_service(name: str) -> dict[str, Outcome]:
    """Run the suite on a broker that offers the versions of a service, and return the outcomes by capability."""
    with running_service(SERVICES[name]) as (cluster, proxy):
        outcomes = asyncio.run(examine(cluster))
    assert not proxy.refused, f"{name} does not offer these versions: {proxy.refused}"
    return outcomes


def unexpected(name: str, outcomes: Mapping[str, Outcome], expected: Mapping[str, str]) -> list[str]:
    """Return a sentence about each outcome that differs from what is expected of a broker."""
    return [
        f"{name}: {capability}: {outcome.result}, not {expected[capability]} {outcome.error}"
        for capability, outcome in outcomes.items()
        if outcome.result != expected[capability]
    ]


def record(name: str, outcomes: Mapping[str, Outcome], facts: Mapping[str, str | int]) -> None:
    """Replace the recorded outcomes and facts of a broker."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = {
        **facts,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "capabilities": {
            capability: {"result": one.result, "error": one.error} if one.error else {"result": one.result}
            for capability, one in outcomes.items()
        },
    }
    RESULTS.write_text(f"{json.dumps(results, indent=1)}\n")


if __name__ == "__main__":
    sys.exit(main())
