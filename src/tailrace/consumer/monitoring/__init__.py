"""Health, metrics and statistics of one consumer."""
