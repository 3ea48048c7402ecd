"""Models of coordinators and brokers, and simulated members, for tests of core."""
