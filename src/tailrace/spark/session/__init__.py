"""SparkSession: connector, Java, options of the Kafka source."""
