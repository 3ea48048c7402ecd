"""Signatures of handlers, their dependencies, and codecs; all are prepared once, when an app starts."""
