"""Consumer and GroupMember: reading, membership of a group, commits, and the decisions behind them."""
