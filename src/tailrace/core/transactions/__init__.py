"""Transactions around handlers: when one opens and closes, which records it refuses."""
