"""The page of options is written from their declaration, and is as that is now."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

from tailrace.config import ConsumerConfig

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_what_is_declared():
    """An option that changes without the page fails here: `python docs/options.py` writes it anew."""
    spec = importlib.util.spec_from_file_location("options", DOCS / "options.py")
    options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(options)
    page = options.PAGE.read_text()

    assert page == options.written()
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == [one.name for one in dataclasses.fields(ConsumerConfig)]
