"""Events with their hooks and log format, and statistics with their metrics."""
