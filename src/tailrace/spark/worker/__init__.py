"""Execution of handlers in Spark's Python workers."""
