"""Execution of handlers: executors of records and batches, calls, recovery from failures."""
