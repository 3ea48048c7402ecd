"""Kafka protocol: messages, their encoding and version negotiation."""
