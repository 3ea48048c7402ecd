"""Kafka's rule for topic names."""

from __future__ import annotations

import pytest

from tailrace.core.cluster_metadata import topic_name_fault


@pytest.mark.parametrize("name", ["orders", "Orders.eu_1-x", "a" * 249, "...", "-"])
def test_legal_name_has_no_fault(name):
    """Up to 249 ASCII alphanumerics, dots, underscores and dashes are legal."""
    assert topic_name_fault(name) == ""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("new orders", "not ' '"),
        ("orders/eu", "not '/'"),
        ("bestellungen-für", "not 'ü'"),
        ("orders\n", r"not '\n'"),
        ("", "1 to 249"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a" * 250, "249"),
        (7, "not int"),
    ],
)
def test_fault_names_the_illegal_character_or_length(name, fault):
    """The fault of an illegal name, for use in an error message, names the character or the length."""
    assert fault in topic_name_fault(name)
