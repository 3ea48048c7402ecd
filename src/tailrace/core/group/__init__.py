"""Group membership as state machines (classic and KIP-848), heartbeats, assignors."""
