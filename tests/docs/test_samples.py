"""Samples of the pages: those of a page run one after the other, and its apps start."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import types
from collections.abc import Coroutine
from importlib.machinery import BuiltinImporter, ModuleSpec
from pathlib import Path

import pytest

import tailrace
from tailrace import App
from tailrace.testing import TestApp

DOCS = Path(__file__).parents[2] / "docs"
UNTESTED = {"coming-from", "deploy-on-spark", "outbox", "run-on-spark", "trace-an-app", "watch-an-app"}
"""Beginnings of the names of pages with tests of their own, or whose samples need a server."""
PAGES = sorted(page.stem for page in (DOCS / "howto").glob("*.md") if not page.stem.startswith(tuple(UNTESTED)))


@pytest.mark.parametrize("page", PAGES)
async def test_samples_run_and_their_apps_start(page, monkeypatch):
    """The samples of a page run in order, its tests pass, and its apps start."""
    monkeypatch.setenv("TAILRACE_SASL_PLAIN_PASSWORD", "secret")
    for module in (asyncio, tailrace):
        monkeypatch.setattr(module, "run", Coroutine.close)  # no program of a page finds its broker
    module = types.ModuleType("page")
    # Python 3.15 warns of tracebacks through modules without a loader.
    module.__spec__ = ModuleSpec("page", BuiltinImporter)
    monkeypatch.setitem(sys.modules, "page", module)
    text = (DOCS / "howto" / f"{page}.md").read_text()

    for sample in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        above = text.count("\n", 0, sample.start(1))
        exec(compile("\n" * above + sample[1], page, "exec"), vars(module))

    tests = [one for name, one in vars(module).items() if name.startswith("test_")]
    for test in tests:
        if not inspect.signature(test).parameters:
            await test()
    for app in {id(one): one for one in vars(module).values() if isinstance(one, App)}.values():
        async with TestApp(app):
            pass
