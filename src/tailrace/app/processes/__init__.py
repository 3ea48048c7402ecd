"""Worker processes: WorkerPool runs an app in each; ProcessPoolConsumer merges the records that they read."""
