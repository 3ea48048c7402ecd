"""Kafka's rule for names of topics."""

from __future__ import annotations

import pytest

from tailrace.core.legal_topic_names import topic_name_fault


@pytest.mark.parametrize("name", ["orders", "Orders.eu_1-x", "a" * 249, "...", "-"])
def test_a_legal_name_has_no_fault(name):
    """Letters, digits, dot, underscore and dash, 249 of them at most."""
    assert topic_name_fault(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("new orders", "has ' '"),
        ("orders/eu", "has '/'"),
        ("bestellungen-für", "has 'ü'"),
        ("orders\n", r"has '\n'"),
        ("", "1 to 249"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a" * 250, "249"),
        (7, "not int"),
    ],
)
def test_an_illegal_name_is_explained(name, said):
    """The fault names the character or the length."""
    assert said in topic_name_fault(name)
