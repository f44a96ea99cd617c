"""Reliable message consumption for Python."""
