"""The public surface changes on purpose only."""

from __future__ import annotations

import difflib

from tests.support.docs_modules import DOCS, docs_module


def test_the_public_surface_is_the_one_written_down():
    """Each name, signature, default, option, event, error and command is as in docs/public_api.txt.

    After a change on purpose run ``python docs/public_api.py`` and add a line to CHANGELOG.md.
    """
    module = docs_module("public_api")

    saved, current = (DOCS / "public_api.txt").read_text().splitlines(), module.written().splitlines()

    assert list(difflib.unified_diff(saved, current, "docs/public_api.txt", "the code", lineterm="", n=0)) == []
