"""Reading and writing of record batches. No other package imports aiokafka.record."""
