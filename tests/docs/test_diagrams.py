"""The diagrams on the pages are up to date with the tables of states."""

from __future__ import annotations

import re

import pytest

from tests.support.docs_modules import docs_module


@pytest.fixture(scope="module")
def diagrams():
    return docs_module("diagrams")


def test_the_diagrams_are_up_to_date(diagrams):
    """The diagrams are those of the tables; `python docs/diagrams.py` writes them."""
    page = diagrams.PAGE.read_text()

    assert page == diagrams.drawn(page)
    assert page.count("stateDiagram-v2") == len(diagrams.TABLES)


@pytest.mark.parametrize("name", ["classic", "consumer"])
def test_every_state_can_be_entered_and_left(diagrams, name):
    """Each state of each diagram has a name, a transition to it and one from it."""
    drawn = diagrams.diagram(diagrams.TABLES[name])

    named = set(re.findall(r"^    (\w+): ", drawn, re.MULTILINE))
    arrows = re.findall(r"^    (\S+) --> (\w+|\[\*\])", drawn, re.MULTILINE)
    assert {end for _, end in arrows} >= named - {"FAILED"}
    assert {start for start, _ in arrows} >= named
