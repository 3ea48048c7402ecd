"""Publishing of what handlers return."""
