"""Integrations with other systems; each module needs the extra of its name and is imported by name."""
