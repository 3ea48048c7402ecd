"""Integrations with other systems. A module is imported by its name and needs an extra; its docstring names it."""
