"""Fetching from brokers into the buffer."""
