"""Transactions of an app: when a transaction opens and closes, and which records it does not contain."""
