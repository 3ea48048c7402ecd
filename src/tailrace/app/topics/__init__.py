"""Topics of a group: those that its handlers read, and its own retry, replay and dead-letter topics."""
