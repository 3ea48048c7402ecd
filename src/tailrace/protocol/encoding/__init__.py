"""Encoding of messages: schema tables, primitive types, frames."""
