"""Page about the tests of other clients: each row names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(test_\w+)` \| (\w+) \| ?(.*?) ?\|$", re.MULTILINE)


def test_every_row_of_the_page_has_its_test():
    """Each row names a test of its name in tests/compat, or a test elsewhere."""
    rows = ROW.findall((ROOT / "docs" / "compat.md").read_text())
    ported = "\n".join(file.read_text() for file in (ROOT / "tests" / "compat").glob("test_*.py"))

    assert len(rows) == len({name for name, _, _ in rows}) == 180
    for name, result, difference in rows:
        assert result in {"passes", "differs", "elsewhere", "no"}, name
        assert (re.search(rf"\b{name}\b", ported) is not None) is (result in {"passes", "differs"}), name
        assert difference or result == "passes", name
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", difference):
            assert f"def {test}(" in (ROOT / path).read_text(), name
