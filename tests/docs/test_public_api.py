"""The public API changes on purpose only."""

from __future__ import annotations

import difflib
import re

from tests.support.docs_modules import DOCS, docs_module

ANY_OBJECT = {
    "async cleanup_ctx",
    "async lifespan",
    "async publish",
    "async send",
    "key",
    "OffsetOverrideRejected",
    "spark_session",
    "value",
}
"""Public names that take or hold any object; docs/explanation/design.md gives the reasons."""


def test_the_public_api_is_the_recorded_one():
    """Each name, signature, default, option, event, error and command is as in docs/public_api.txt.

    After a change on purpose run ``python docs/public_api.py`` and add a line to CHANGELOG.md.
    """
    module = docs_module("public_api")

    saved, current = (DOCS / "public_api.txt").read_text().splitlines(), module.written().splitlines()

    assert list(difflib.unified_diff(saved, current, "docs/public_api.txt", "the code", lineterm="", n=0)) == []


def test_object_annotates_only_parameters_that_accept_any_object():
    """A public signature has the type ``object`` only where it accepts any object."""
    lines = docs_module("public_api").written().splitlines()

    assert {re.split(r"[(:]", line.strip())[0] for line in lines if re.search(r"\bobject\b", line)} == ANY_OBJECT
