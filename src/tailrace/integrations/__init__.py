"""Integrations with other systems; the docstring of each module names the extra that the module needs."""
