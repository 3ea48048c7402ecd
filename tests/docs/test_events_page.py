"""docs/events.md matches the declarations of the events."""

from __future__ import annotations

import re

import pytest

from tailrace.observe import events
from tests.support.docs_modules import docs_module

EVENTS = [
    one
    for name in events.__all__
    if isinstance(one := getattr(events, name), type) and issubclass(one, events.Event) and one is not events.Event
]


@pytest.fixture(scope="module")
def generator():
    return docs_module("events")


def test_the_page_matches_the_declarations(generator):
    """The page is up to date; `python docs/events.py` writes it."""
    page = generator.PAGE.read_text()

    assert page == generator.written()
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(one.__name__ for one in EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_fields_with_a_unit_or_a_choice_are_described(event, generator):
    """Durations, flags, counts and sizes have a description, in which a duration has its unit."""
    fields = generator.declared_fields(event)

    assert list(fields) == list(event.__struct_fields__)
    for name, (kind, text) in fields.items():
        if kind in {"bool", "float", "float | None"} or (kind == "int" and name not in {"offset", "pid"}):
            assert text, f"{name} has no description"
        if name.endswith("_s") or name == "seconds":
            assert "in seconds" in text
