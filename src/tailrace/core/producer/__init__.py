"""Idempotent and transactional producers: batches, partitions, and the state machine of transactions (KIP-98)."""
