"""Delivery of fetched records to readers, and progress of what was delivered."""
