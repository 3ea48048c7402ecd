"""Fixtures: a schema registry, and a gate before it."""

from __future__ import annotations

import pytest

from tests.support.schema_registry import Gate, running_registry


@pytest.fixture(scope="session")
def registry():
    """Address of a registry that all tests share; each test has subjects of its own."""
    with running_registry() as url:
        yield url


@pytest.fixture
def gate(registry):
    with Gate(registry) as gate:
        yield gate
