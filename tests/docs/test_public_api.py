"""The public surface changes on purpose only."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_public_surface_is_the_one_written_down():
    """Each name, signature, default, option, event, error and command is as in docs/public_api.txt.

    After a change on purpose run ``python docs/public_api.py`` and add a line to CHANGELOG.md.
    """
    spec = importlib.util.spec_from_file_location("public_api", DOCS / "public_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    saved, current = (DOCS / "public_api.txt").read_text().splitlines(), module.written().splitlines()

    assert list(difflib.unified_diff(saved, current, "docs/public_api.txt", "the code", lineterm="", n=0)) == []
