"""Execution of handlers: executors of records and batches, calls of handlers, and recovery from failures."""
