"""Simulation of Kafka brokers, the network and time; provisional: names and arguments may change."""

from tailrace.errors import SimulationError
from tailrace.testing.simulation.cluster import SimulatedCluster
from tailrace.testing.simulation.loop import Process, SimulatedLoop, simulated

__all__ = ["Process", "SimulatedCluster", "SimulatedLoop", "SimulationError", "simulated"]
