"""Apache Kafka brokers as child processes, without Docker and without a system Java.

Requires the extra ``testing``.
"""
