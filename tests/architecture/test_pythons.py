"""The places that name the supported versions of Python agree."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DECLARED = [
    found[1]
    for one in SETTINGS["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one))
]


def test_all_settings_name_the_declared_versions():
    """Wheels are built for each declared version, the oldest is required, and mypy and ruff check for it."""
    assert SETTINGS["project"]["requires-python"] == f">={DECLARED[0]}"
    assert SETTINGS["tool"]["cibuildwheel"]["build"] == [f"cp{one.replace('.', '')}-*" for one in DECLARED]
    assert SETTINGS["tool"]["mypy"]["python_version"] == DECLARED[0]
    assert SETTINGS["tool"]["ruff"]["target-version"] == f"py{DECLARED[0].replace('.', '')}"


def test_scripts_look_for_the_declared_versions():
    """``scripts/test`` and continuous integration find each declared version, the newest first."""
    done = subprocess.run(
        ["sh", "-c", ". scripts/environment; echo $python_versions", "scripts/test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == DECLARED[::-1]


def test_the_readme_names_the_declared_versions():
    """The README names the oldest and the newest supported version."""
    assert f"Python {DECLARED[0]} to {DECLARED[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
