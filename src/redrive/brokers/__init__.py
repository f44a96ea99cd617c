"""Broker adapters. Each knows core only, never another adapter."""
