"""Retries: attempts, delays, failure counts, delayed records."""
