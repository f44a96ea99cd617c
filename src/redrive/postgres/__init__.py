"""The floor of the PostgreSQL stores: connections, schema, and the work on its tables. Needs redrive[postgres]."""

from redrive.postgres.database import Database

__all__ = ["Database"]
