"""Code that uses tailrace passes mypy and pyright in strict mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CODE = sorted(map(str, [*HERE.glob("*_code.py"), *(ROOT / "examples").glob("*.py")]))
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *CODE],
    "pyright": [sys.executable, "-m", "basedpyright", "--project", str(HERE), "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_accept_right_code_and_report_wrong_code(checker):
    """Correct code and the examples have no errors, and wrong code has the errors that its comments name."""
    done = subprocess.run(CHECKERS[checker], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


# The way by which TestApp, worker processes and integrations reach an app. Its types are inferred, and App with it.
INTERNAL = {"tailrace.app.app.App", "tailrace.app.app.App.runtime"}


def test_the_public_surface_is_typed():
    """Pyright knows the declared type of each public name and of its members."""
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "tailrace", "--ignoreexternal", "--outputjson"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # In the project's folder, pyright would not look for an installed package.
    done = subprocess.run(
        command, cwd="/", env={**os.environ, "PATH": path}, capture_output=True, timeout=100, check=False
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]

    homes = {f"{getattr(tailrace, name).__module__}.{name}" for name in tailrace.__all__}
    public = [one for one in symbols if homes & {one["name"], one["name"].rpartition(".")[0]}]
    assert len(public) > 2 * len(homes)
    unknown = {one["name"] for one in public if not one["isTypeKnown"] or one["isTypeAmbiguous"]}
    assert unknown - INTERNAL == set()
