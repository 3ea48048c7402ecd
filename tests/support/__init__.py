"""Support code of the tests: other clients, brokers behind proxies, simulations and parts of fixtures."""
