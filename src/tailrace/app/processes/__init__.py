"""Several processes: WorkerPool runs an app in each process, ProcessPoolConsumer reads one stream with all of them."""
