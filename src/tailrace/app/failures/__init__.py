"""Failed records: failure policy, dead letters, retry delays."""
