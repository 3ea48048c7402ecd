"""Transactional producer (KIP-98, KIP-447)."""
