"""Offsets of a pipeline: group commits, checkpoint, start offsets, resumption."""
