"""Fixtures: a schema registry and an HTTP proxy before it."""

from __future__ import annotations

import pytest

from tests.support.schema_registry import Gate, running_registry


@pytest.fixture(scope="session")
def registry():
    """URL of a registry shared by all tests; each test uses its own subjects."""
    with running_registry() as url:
        yield url


@pytest.fixture
def gate(registry):
    with Gate(registry) as gate:
        yield gate
