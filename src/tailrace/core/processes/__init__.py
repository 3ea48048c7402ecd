"""Plans and messages of worker processes."""
