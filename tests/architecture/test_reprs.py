"""Texts of objects in error reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tailrace import App, Consumer, ProcessPoolConsumer, SchemaRegistry, WorkerPool
from tailrace.config import resolve
from tailrace.errors import ConfigurationError
from tailrace.net.cluster import Cluster
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.testing import KafkaCluster, KafkaServer

NO_FILE = {"bootstrap_servers": "x:1", "security_protocol": "SSL", "ssl_cafile": "/missing"}


@pytest.mark.parametrize(
    "construct",
    [
        lambda: Cluster(resolve(NO_FILE)),
        partial(Consumer, "t", group_id=1),
        partial(App, retry=5),
        partial(App, misspelled=1),
        partial(WorkerPool, "shop:app", workers=-1),
        partial(ProcessPoolConsumer, "t", processes=0),
        partial(SchemaRegistry, "ftp://registry"),
        partial(KafkaServer, config=5),
        partial(KafkaCluster, -1),
        lambda: TransactionalProducer(resolve({}), transactional_id="", transaction_timeout_ms=0),
    ],
)
def test_an_object_whose_constructor_raised_has_a_text(construct: Callable[[], object]):
    """The text of each ``self`` in the traceback of a constructor is a string, as in an error report with variables."""
    with pytest.raises((ConfigurationError, TypeError, ValueError, AttributeError)) as raised:
        construct()

    shown, entry = [], raised.tb
    while entry is not None:
        shown += [repr(entry.tb_frame.f_locals["self"])] if "self" in entry.tb_frame.f_locals else []
        entry = entry.tb_next
    assert shown
