"""One-file storage on SQLite: queue, claims, letters and redrive jobs in one file, one transaction each."""

from redrive.sqlite.file import SqliteFile
from redrive.sqlite.ledger import SqliteLedger

__all__ = ["SqliteFile", "SqliteLedger"]
