"""Page on problems of other clients: each row names existing tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "fifteen-pains.md"
ROWS = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]


def test_every_row_names_tests_that_exist():
    """Each of fifteen rows names at least one test, and each named test is in its file."""
    held = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in ROWS]

    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 16))
    assert all(held)
    assert [one for tests in held for one in tests if one[1] not in functions(one[0])] == []


def functions(path: str) -> set[str]:
    """Return the names of the tests in a file."""
    defined = ast.parse((ROOT / path).read_text()).body
    return {one.name for one in defined if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
