"""Commits, and requests about offsets."""
