"""Publishing of handlers' results."""
