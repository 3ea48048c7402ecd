"""Recorded frames, Kafka's own schemas, and strategies that generate messages."""
