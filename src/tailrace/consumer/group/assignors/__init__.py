"""Partition assignors, as functions of plain data."""
