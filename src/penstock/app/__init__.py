"""What handlers publish, so far: look in ``producer``."""
