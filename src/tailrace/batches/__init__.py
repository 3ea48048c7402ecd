"""Record batches: read, written, checked. The only package that imports aiokafka.record."""
