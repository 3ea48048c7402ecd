"""Exactly-once delivery: records handled inside transactions."""
