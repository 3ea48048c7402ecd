"""Connections to brokers, cluster metadata and coordinator lookup."""
