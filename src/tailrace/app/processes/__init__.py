"""Several processes: WorkerPool runs an app in each process; ProcessPoolConsumer reads with several processes."""
