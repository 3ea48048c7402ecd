"""Pure decisions: no clock, IO, logging or aiokafka. Time is an argument, effects are values."""
