"""Peers, secured brokers and sockets for tests of connections."""
