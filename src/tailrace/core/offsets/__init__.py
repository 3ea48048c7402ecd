"""When and what to commit."""
