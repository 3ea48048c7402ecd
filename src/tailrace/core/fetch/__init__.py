"""Fetching: buffer, fetch plan, fetch sessions, isolation level."""
