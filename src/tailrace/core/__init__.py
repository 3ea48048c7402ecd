"""Pure decisions, without clock, I/O or logging: the time is an argument, and effects are returned as values."""
