"""The books balance with everything that people and time do to letters (case MA-04)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from redrive import Redrive, Retry
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.control import Kind
from redrive.runtime.archive import Archive, archive_files, letters_in
from redrive.runtime.metrics import Metrics
from redrive.runtime.overflow import Overflow
from redrive.service import Service
from tests.runtime.stage import Told, depth, working
from tests.service.test_metrics import scrape, total

QUEUE = "orders"


@pytest.mark.parametrize("broker", ["memory://", "sqlite:////{}/shop.db"])
async def test_published_is_processed_waiting_kept_archived_removed_and_erased(broker: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    app = Redrive("shop", broker.format(tmp_path), settings={"durability": "normal", "archive": str(folder)})
    metrics = Metrics()
    metrics.subscribe(app.events)

    @app.consumer(QUEUE, retry=Retry(1), breaker=None, letter_ttl="90d", max_letters=40)
    async def handle(order: dict) -> None:
        if order["bad"]:
            raise ValueError("never")

    told = Told(app)
    async with app:
        service = Service(app)
        await service.quarantine(QUEUE, [(Kind.TENANT, "acme")], actor="ann")
        async with working(app):
            for n in range(120):
                tenant = ("acme", "bolt", "carl")[n % 3]
                await app.publish(QUEUE, {"bad": n % 2 == 0}, tenant=tenant, message_id=f"m-{n}")
            await told.until("deliveries.processed", 40)
            await told.until("delivery.dead_lettered", 80)
            await told.until_true(lambda: sum(e["count"] for e in told.named("letters.archived")) == 40)
        await service.pause_queue(QUEUE, actor="ann")
        async with working(app):
            await told.until("queue.paused")
            await app.publish_many(QUEUE, [{"bad": False}] * 7)
        erased = await service.erase(Selection(tenant="bolt"), actor="ann")
        await service.review(Selection(states=OPEN_STATES), ReviewState.CLOSED, limit=3, actor="ann")
        with Archive(folder / "by-hand.jsonl") as archive:
            removed = await service.remove(Selection(states=OPEN_STATES), limit=5, archive=archive, actor="ann")
        for summary in (await service.letters(Selection(states=OPEN_STATES), limit=4)).letters:
            over = replace((await service.letter(summary.id)).letter, expires_at=app.clock.now() - 1)
            await app.backend.letters.prune(now=0, limit=1, selection=Selection(ids=(over.id,)))
            await app.backend.letters.put([over])
        expired = await Overflow(app, [app.consumers[QUEUE]], owner="w").expire(f"{QUEUE}.dead")
        kept = (await service.stats(Selection())).total
        waiting = await depth(app, QUEUE)

    archived = {each.id for path in archive_files(folder) for each in letters_in(path)}
    series = scrape(metrics)
    assert (5, 4, 7) == (removed, expired, waiting)
    assert 127 == 40 + waiting + kept + len(archived) + erased.letters + erased.archived
    assert total(series, "dlq_entries_total") == 80 == kept + len(archived) + erased.letters + erased.archived
    pruned = series["redrive_records_pruned_total", 'what="letters"']
    assert removed + expired + erased.letters == pruned
