"""Operations that say who did what over the admin API."""

from __future__ import annotations

from redrive.core.audit import WritePage, WriteQuery
from redrive.errors import UnsupportedError
from redrive.service.operations import MAX_PAGE, Operations


class AuditOperations(Operations):
    """On what people did."""

    async def writes(self, query: WriteQuery, *, limit: int = 50, cursor: str | None = None) -> WritePage:
        """Writes over the admin API, newest first. Raises `ConfigurationError` for a cursor that no page had."""
        store = self._app.backend.requests
        if store is None:
            raise UnsupportedError(f'"{self._app.backend.url}" keeps no record of what was written over the API.')
        return await store.writes(query, limit=min(limit, MAX_PAGE), cursor=cursor)
