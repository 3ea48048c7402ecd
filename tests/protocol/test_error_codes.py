"""Error codes, compared with Kafka's."""

from __future__ import annotations

import pytest

from tailrace.error_codes import RETRIABLE, ErrorCode, name_of
from tests.support.protocol.kafka_errors import kafka_errors


def test_every_code_has_kafkas_name():
    """The codes and their names are exactly those of Kafka."""
    assert {one.code: one.name for one in kafka_errors()} == {int(one): one.name for one in ErrorCode}


def test_retriable_codes_are_kafkas():
    """A code is retriable if Kafka's exception is."""
    assert {one.name for one in kafka_errors() if one.is_retriable} == {one.name for one in RETRIABLE}


@pytest.mark.parametrize(
    ("code", "name"), [(16, "NOT_COORDINATOR"), (-1, "UNKNOWN_SERVER_ERROR"), (9999, "ERROR_9999")]
)
def test_an_unknown_error_code_is_named_by_its_number(code, name):
    """The name of an unknown code contains its number."""
    assert name == name_of(code)
