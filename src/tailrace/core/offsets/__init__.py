"""Content and schedule of commits."""
