"""Codec for values and keys whose schemas are in a schema registry: Avro, JSON Schema and Protobuf."""
