"""Commits: content and schedule."""
