"""Policies: when to retry, how failures are classified, how messages flow."""
