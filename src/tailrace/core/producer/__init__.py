"""Transactional producer as a state machine (KIP-98), partitioner."""
