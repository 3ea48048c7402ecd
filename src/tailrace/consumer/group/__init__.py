"""Group membership: coordinator, requests, rebalance callbacks."""
