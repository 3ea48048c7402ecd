"""Layout of each message on the wire, by version."""
