"""Execution of an app's handlers in Spark's Python workers."""
