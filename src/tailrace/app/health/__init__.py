"""Health of an app: checks, HTTP endpoints, event loop watchdog."""
