"""Codecs of values and keys: their protocols, JSON, and Avro, JSON Schema and Protobuf of a schema registry."""
