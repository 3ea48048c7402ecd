"""Brokers and the cluster: connections, who leads what, who coordinates whom.

Look in ``frames`` for bytes off the socket, in ``connection`` for one open connection, in ``dialer`` for how one is
opened (TCP, TLS, versions, SASL), in ``broker`` for the several connections to one server, in ``cluster`` for the
servers together.
"""
