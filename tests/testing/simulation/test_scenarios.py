"""Consumers and apps keep their promises in simulated faults, and the simulation finds planted defects."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.testing.simulation.defects import DEFECTS
from tests.testing.simulation.scenarios import SCENARIOS, Fault, run, shrunk


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 110))])
def test_promises_hold(scenario, seed):
    """Nothing is lost, out of order, committed too early or started after its revocation, whatever fails."""
    outcome = run(seed, scenario, duration_s=60)

    assert not outcome.violations, "\n".join(map(str, [*outcome.faults, *outcome.violations]))
    assert outcome.records > 1_000


@pytest.mark.parametrize("scenario", ["iterate", "by key"])
def test_a_seed_is_replayed_exactly(scenario):
    """The same seed gives the same events at the same times; another seed gives others."""
    first, second, other = (run(seed, scenario, duration_s=15).trace for seed in (7, 7, 8))

    assert first == second != other


@pytest.mark.slow
@pytest.mark.parametrize("what", DEFECTS)
def test_a_planted_defect_is_found(what):
    """Each planted defect breaks the promise that it should, within 40 seeds."""
    plant, scenario, promise = DEFECTS[what]
    # A repeated record is a defect only without a fault that explains it.
    faults = [Fault(20.0, "join member", 0, 0.0), Fault(40.0, "join member", 0, 0.0)] if promise == "D" else None
    with ExitStack() as stack:
        patches = plant()
        for one in patches if isinstance(patches, tuple) else (patches,):
            stack.enter_context(one)
        found = any(
            promise in {one.promise for one in run(seed, scenario, duration_s=60, faults=faults).violations}
            for seed in range(40)
        )

    assert found


@pytest.mark.slow
def test_a_failure_is_shrunk_to_the_faults_that_it_needs():
    """Faults without which the promise is broken, too, are left out."""
    plant, scenario, promise = DEFECTS["begins one record after the commit"]
    needed = Fault(15.0, "kill member", 1, 0.0)
    others = [
        Fault(5.0, "add partitions", 0, 0.0),
        Fault(8.0, "reset broker", 2, 0.0),
        Fault(20.0, "join member", 0, 0.0),
    ]
    with plant():
        broken = run(3, scenario, duration_s=30, faults=sorted([needed, *others]))
        smallest = shrunk(broken, promise, duration_s=30)

    assert promise in {one.promise for one in broken.violations}
    assert len(smallest.faults) < len(broken.faults)
    assert promise in {one.promise for one in smallest.violations}
