"""Exactly once: a producer of transactions, and what stands between an app and its consumer where it is used."""
