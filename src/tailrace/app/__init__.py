"""Apps: declared handlers, and what runs them."""
