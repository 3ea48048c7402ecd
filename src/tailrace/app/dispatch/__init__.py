"""Execution of handlers: executors for records and batches, calls of handlers, and recovery from failures."""
