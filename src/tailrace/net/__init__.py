"""Connections to brokers, cluster metadata, coordinator look-up."""
