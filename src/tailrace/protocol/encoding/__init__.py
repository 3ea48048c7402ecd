"""Encoding of messages: declared fields, layouts, primitive types and frames."""
