"""Samples of the page on Spark, run like the cells of a notebook."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

_PAGE = Path(__file__).parents[2] / "docs" / "howto" / "run-on-spark.md"


def run_samples(monkeypatch: pytest.MonkeyPatch, **counts: int) -> types.ModuleType:
    """Run the first samples of sections of the page in order, in a module from which workers cannot import.

    Args:
        monkeypatch: fixture that removes the module.
        counts: number of samples by title of the section, in lower case and with underscores.
    """
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    for section in re.split(r"^###? ", _PAGE.read_text(), flags=re.MULTILINE):
        title = section.partition("\n")[0].lower().replace(" ", "_")
        samples = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        for sample in samples[: counts.pop(title, 0)]:
            exec(compile(sample, "page", "exec"), vars(module))
    assert not counts, "the page has no such sections"
    return module
