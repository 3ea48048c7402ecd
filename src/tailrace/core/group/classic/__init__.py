"""Member of a group in the classic protocol (JoinGroup, SyncGroup)."""
