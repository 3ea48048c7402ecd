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


def test_the_pages_name_the_declared_versions():
    """The README names the oldest and the newest supported version, and the page of Pythons lists all as supported."""
    assert f"Python {DECLARED[0]} to {DECLARED[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "pythons.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (3\.\d+)[.\d]* \| yes \|", page, re.MULTILINE) == DECLARED


def test_the_page_names_the_accepted_versions_of_aiokafka():
    """The page names each minor version of aiokafka that the package accepts."""
    (pin,) = (one for one in SETTINGS["project"]["dependencies"] if one.startswith("aiokafka"))
    first, end = (int(one) for one in re.findall(r"0\.(\d+)", pin))
    names = [f"0.{minor}" for minor in range(first, end)]

    page = (ROOT / "docs" / "pythons.md").read_text(encoding="utf-8")
    assert f"aiokafka {', '.join(names[:-1])} and {names[-1]} are supported" in page
