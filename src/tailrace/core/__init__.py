"""Pure decisions, without clock, IO, logging or aiokafka. The time is an argument, and effects are values."""
