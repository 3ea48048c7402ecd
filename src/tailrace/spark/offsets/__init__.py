"""Offsets of a pipeline: committed offsets, checkpoint, start offsets and resumption."""
