"""The page, docstrings and help texts that are written from the declaration of the options."""

from __future__ import annotations

import pydoc
import re

import pytest

from tailrace import App, Consumer, Handlers
from tests.support.docs_modules import DOCS, docs_module

options = docs_module("options")

CONSUMER, PRODUCER = options.consumer_options(), options.producer_options()
APP, HANDLER = options.app_options(), options.handler_options()


@pytest.mark.parametrize(("path", "generated"), options.GENERATED, ids=lambda one: getattr(one, "name", ""))
def test_generated_texts_are_up_to_date(path, generated):
    """All texts are up to date with the declaration; `python docs/options.py` writes them."""
    assert path.read_text(encoding="utf-8") == generated()


@pytest.mark.parametrize(
    ("documented", "listed"),
    [(Consumer, CONSUMER), (App, [*APP, *CONSUMER]), (Handlers.handler, HANDLER), (App.handler, HANDLER)],
    ids=["Consumer", "App", "Handlers.handler", "App.handler"],
)
def test_help_lists_every_option(documented, listed):
    """help() of a class or decorator has a line for each option with its default."""
    text = pydoc.render_doc(documented, renderer=pydoc.plaintext)

    assert re.findall(r"^[ |]+(\w+)=\S", text, re.MULTILINE)[: len(listed)] == [one.name for one in listed]


@pytest.mark.parametrize("option", [*CONSUMER, *PRODUCER, *APP, *HANDLER], ids=lambda one: one.name)
def test_every_option_is_documented(option):
    """Each option has a sentence that fits into its line of the help text."""
    assert re.fullmatch(r"\S.{15,}\.", option.text[0]), option.text[0]
    assert options.summary(option, indent=8).endswith(option.text[0].replace("``", ""))


def test_options_are_grouped():
    """The declaration has the options in the order and under the headings of their documentation."""
    source = (DOCS.parent / "src/tailrace/config/options.py").read_text(encoding="utf-8")
    found = re.findall(r"^    (?:# ---- (.*)|(\w+): .* = _option\()", source, re.MULTILINE)
    section, declared = "", []
    for title, name in found:
        section = title or section
        if name:
            declared.append((name, section))

    assert declared == [(one.name, one.section) for one in [*CONSUMER, *PRODUCER]]
