"""Transactions around handlers: when a transaction opens and closes, and which records it leaves out."""
