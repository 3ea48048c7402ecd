"""Topics of a group: those its handlers read, and its own retry, replay and dead-letter topics."""
