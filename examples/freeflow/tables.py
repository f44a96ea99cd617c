"""What the domains keep."""

from __future__ import annotations

from typing import Any

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS users (name TEXT PRIMARY KEY, mail TEXT)",
    "CREATE TABLE IF NOT EXISTS logins (user TEXT PRIMARY KEY, failures INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS alarms (source TEXT PRIMARY KEY, severity TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS words (word TEXT, title TEXT, count INTEGER, PRIMARY KEY (word, title))",
    "CREATE TABLE IF NOT EXISTS workflows (name TEXT PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS audit (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL)",
)


def create_tables(tx: Any) -> None:
    """Within a transaction; nothing where they are there."""
    for statement in SCHEMA:
        tx.execute(statement)
