"""Each extra installs what its code imports."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Optional packages that are used if installed; py4j comes with pyspark.
BESIDE = {"tailrace", "py4j", "rich"}


@pytest.mark.parametrize(
    ("extra", "places"),
    [
        ("spark", ("tailrace/spark/", "tailrace/embedded/jars.py", "tailrace/embedded/java.py")),
        ("testing", ("tailrace/embedded/", "tailrace/testing/")),
    ],
)
def test_an_extra_installs_what_its_code_imports(modules, extra, places):
    """Packages that an extra's folders import are dependencies of the project or of the extra."""
    brought = PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]
    there = {re.match(r"[\w-]+", one)[0].replace("-", "_") for one in brought} | sys.stdlib_module_names | BESIDE
    missing = [
        f"{module.where}:{one.line}: {one.module}"
        for module in modules
        for one in module.imports()
        if module.where.startswith(places) and one.module.partition(".")[0] not in there
    ]

    assert not missing, "\n".join(missing)
