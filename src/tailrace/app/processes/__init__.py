"""Worker processes: an app in each (WorkerPool), or readers of one stream (ProcessPoolConsumer)."""
