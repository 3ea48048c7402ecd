"""Apache Kafka brokers as child processes, without Docker and without an installed Java.

The package requires the extra ``testing``.
"""
