"""Health of an app: checks, HTTP endpoints, and a watchdog for the event loop."""
