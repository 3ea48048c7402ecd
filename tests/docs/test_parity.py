"""Page on capabilities of older clients: one row for each, with an existing test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
SECTIONS = {"S1": 45, "S2": 38, "S3": 84, "S4": 37, "S5": 62}
NUMBERS = [f"{section}.{n}" for section, count in SECTIONS.items() for n in range(1, count + 1)]
CELL = re.compile(r"(?<!\\)\|")


def rows() -> list[list[str]]:
    """Return number, capability, counterpart and test of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| S\d", line)]
    return [[cell.strip() for cell in CELL.split(line)[1:-1]] for line in lines]


@cache
def functions(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    if not (ROOT / path).is_file():
        return frozenset()
    defined = ast.parse((ROOT / path).read_text()).body
    return frozenset(one.name for one in defined if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_capability_has_a_row():
    """Each of 266 capabilities has one row, in order."""
    assert len(NUMBERS) == 266
    assert [row[0] for row in rows()] == NUMBERS


def test_every_row_names_a_test_or_a_reason():
    """A row names an existing test, or gives the reason why the capability is unnecessary."""
    wrong = []
    for number, was, here, held in rows():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held)
        is_there = bool(named) and all(test in functions(path) for path, test in named)
        is_needless = here == "⌛" and not named and held.endswith(".") and len(held.split()) > 5
        if not (was and here and (is_needless or (here != "⌛" and is_there))):
            wrong.append((number, held))

    assert wrong == []


def test_a_row_names_our_api_and_the_page_names_the_older_clients():
    """Only known capabilities are unnecessary, and the page names the older clients."""
    needless = [row[0] for row in rows() if row[2] == "⌛"]

    assert set(needless) <= {"S1.29", "S2.5", "S2.38", "S3.1", "S4.5"}
    assert all(name in PAGE.read_text() for name in ("pykafka", "kiel", "kafka-python"))
