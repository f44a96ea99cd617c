"""Books must balance on Redis too (case MA-04), and what the metrics and commands show of it is what lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.redis import Redis
from tests.service import test_with_worker as books


async def test_the_books_balance_on_redis(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case MA-04."""
    monkeypatch.setenv("REDRIVE_STORE", f"sqlite:///{tmp_path / 'letters.db'}")

    await books.test_the_books_balance(redis.url)
