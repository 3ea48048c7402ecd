"""A handler's signature, looked at once, and what comes of it: how values, keys, headers and dependencies get there."""
