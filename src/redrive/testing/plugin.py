"""Pytest plugin: fixtures for tests of consumers."""
