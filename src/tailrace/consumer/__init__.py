"""Consumer and GroupMember: coroutines that act on the decisions of core."""
