"""Support code of the tests: clients as witnesses, brokers behind proxies, simulations, fixtures' parts."""
