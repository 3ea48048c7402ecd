"""Pages about services set the same options in Python and in the environment."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tailrace.config import resolve

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("connect-to-*.md"))


def python_options(text: str) -> dict[str, object]:
    """Return the arguments of the first App of a page."""
    (sample, *_) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    call = next(
        node
        for node in ast.walk(ast.parse(sample))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "App"
    )
    return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_environment_sets_the_same_options(page):
    """The variables of a page set the options that its first App sets."""
    text = page.read_text()
    variables = dict(re.findall(r"^export (TAILRACE_\w+)=(.*)$", text, re.MULTILINE))

    assert variables
    assert resolve({}, variables) == resolve(python_options(text), {})


def test_each_service_has_a_page_that_the_table_and_the_readme_name():
    """Each page is linked from the table of brokers or the README."""
    docs = PAGES[0].parents[1]
    texts = "".join(page.read_text() for page in (docs / "compatibility.md", docs.parent / "README.md"))

    assert len(PAGES) == 5
    assert [page.stem for page in PAGES if f"howto/{page.name}" not in texts] == []
