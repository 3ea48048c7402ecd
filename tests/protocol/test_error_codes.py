"""Our table of error codes against Kafka's own."""

from __future__ import annotations

import pytest

from tailrace.error_codes import RETRIABLE, ErrorCode, name_of
from tests.support.protocol.kafka_errors import kafka_errors


def test_every_code_has_kafkas_name():
    """Each code that Kafka has, by Kafka's name, and none besides."""
    assert {one.code: one.name for one in kafka_errors()} == {int(one): one.name for one in ErrorCode}


def test_what_may_be_tried_again_is_what_kafka_says():
    """A code is retriable when Kafka's exception for it is."""
    assert {one.name for one in kafka_errors() if one.is_retriable} == {one.name for one in RETRIABLE}


@pytest.mark.parametrize(
    ("code", "name"), [(16, "NOT_COORDINATOR"), (-1, "UNKNOWN_SERVER_ERROR"), (9999, "ERROR_9999")]
)
def test_a_code_has_a_name(code, name):
    """People are told names; a number that nobody knows stands for itself."""
    assert name == name_of(code)
