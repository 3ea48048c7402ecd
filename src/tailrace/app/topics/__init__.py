"""Topics of a group: the topics that its handlers read, and its own retry, replay and dead-letter topics."""
