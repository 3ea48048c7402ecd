"""Spark session: Kafka connector, Java, and options of the Kafka source."""
