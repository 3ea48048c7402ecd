"""Events, the hooks that receive them, and logging."""
