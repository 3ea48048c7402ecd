"""Group membership: state machines of both protocols, assignors, requests, rebalance callbacks."""
