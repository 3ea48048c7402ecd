"""Exactly-once delivery: handling of records in transactions."""
