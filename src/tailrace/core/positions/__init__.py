"""Start points, seeks and partition specs."""
