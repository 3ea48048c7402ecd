"""What must hold for a group as a whole, whatever happens to its members and to what they say."""

from __future__ import annotations

from random import Random

import pytest
from group_world import World
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("seed", range(10))
def test_many_lives(seed):
    """No partition is owned twice, every join ends, and who was stopped does nothing but leave."""
    for life in range(60):
        random = Random(seed * 1_000 + life)
        world = World(random.choice)
        for _ in range(50):
            world.step()
        world.end()


@settings(max_examples=25)
@given(st.data())
def test_a_life(data):
    """The same, of which a failure is told in as few steps as there are."""
    world = World(lambda choices: data.draw(st.sampled_from(choices)))
    for _ in range(data.draw(st.integers(0, 30))):
        world.step()
    world.end()
