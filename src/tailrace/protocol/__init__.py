"""Kafka protocol: messages, their layouts on the wire, version negotiation."""
