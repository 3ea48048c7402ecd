"""Samples of the pages: those of a page run one after the other, and their apps start."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from collections.abc import Coroutine
from pathlib import Path

import pytest

import tailrace
from tailrace import App
from tailrace.testing import TestApp

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [f"howto/{name}.md" for name in ("connect", "inspect-and-reset-groups", "write-handlers")]


@pytest.mark.parametrize("page", PAGES)
async def test_samples_run_and_their_apps_start(page, monkeypatch):
    """Every name is imported or defined above its use, and an app accepts all handlers of its page."""
    monkeypatch.setenv("TAILRACE_SASL_PLAIN_PASSWORD", "secret")
    for module in (asyncio, tailrace):
        monkeypatch.setattr(module, "run", Coroutine.close)  # no program of a page finds its broker
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    text = (DOCS / page).read_text()

    for sample in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        above = text.count("\n", 0, sample.start(1))
        exec(compile("\n" * above + sample[1], page, "exec"), vars(module))

    for app in {id(one): one for one in vars(module).values() if isinstance(one, App)}.values():
        async with TestApp(app):
            pass
