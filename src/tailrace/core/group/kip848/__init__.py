"""Member of a group in the consumer protocol (KIP-848)."""
