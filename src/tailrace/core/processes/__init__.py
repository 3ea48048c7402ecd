"""Worker processes: their number and partitions, their messages, and the merged stream of what they read."""
