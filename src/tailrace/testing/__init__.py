"""Tools for tests: embedded Kafka brokers, a fault proxy, and TestApp, which runs an app without a broker.

The pytest plugin of tailrace provides the fixtures ``kafka_server`` and ``kafka_cluster``. Embedded brokers require the
extra ``tailrace[testing]``.
"""

from tailrace.embedded.node import BrokerNode
from tailrace.embedded.settings import unsecured_token
from tailrace.errors import KafkaNotAvailableError, KafkaServerError, SimulationError
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
    "SimulationError",
    "TestApp",
    "unsecured_token",
]
