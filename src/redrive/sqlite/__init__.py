"""One-file storage on SQLite: queue, claims, letters and redrive jobs in one file, one transaction each."""

from redrive.sqlite.backup import Check, backup, check, restore
from redrive.sqlite.file import Durability, SqliteFile
from redrive.sqlite.ledger import SqliteLedger

__all__ = ["Check", "Durability", "SqliteFile", "SqliteLedger", "backup", "check", "restore"]
