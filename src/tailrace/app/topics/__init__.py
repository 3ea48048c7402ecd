"""Topics of a group: topics that its handlers read, and its retry, replay and dead-letter topics."""
