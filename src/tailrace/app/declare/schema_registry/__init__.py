"""Codec for values whose schemas are in a schema registry (Avro, JSON Schema, Protobuf)."""
