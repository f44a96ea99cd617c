"""Apps with their letters in MongoDB: the documents are those of SQLite alone, and a redrive ends as it should."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from examples.courier.documents import dead_letter_event, processed_event
from redrive import MissingExtraError, Redrive, Retry
from redrive.core.letters.letter import ReviewState
from redrive.testing.samples import HARD_NAMES
from tests.mongodb.server import database_url
from tests.rabbit import Rabbit
from tests.redis import Redis
from tests.runtime.stage import Told, letters, redrive_all, working

QUEUE = "courier-events-main"
EVENT = {
    "eventId": "evt-1",
    "eventType": "shipment.status.updated",
    "idempotencyKey": "courier-x:evt-1",
    "traceId": "req_1",
    "payload": {"shipmentId": "SHP-1", "tags": ["a", "b"], "n": 1.5, "deep": {"x": None}},
}
OWN = {"_id", "redrive"}
"""What the store keeps for itself beside the fields of the documents."""
DAY = timedelta(days=1)


def app_on(broker: str, store: str, fails: list[bool]) -> Redrive:
    app = Redrive("courier", broker=broker, settings={"store": store})

    @app.consumer(QUEUE, retry=Retry(1), dead_letter_queue="courier-events-dlq")
    async def handle(event: dict[str, Any]) -> None:
        if fails[0]:
            raise TimeoutError("downstream")

    return app


async def documents_of(app: Redrive, fails: list[bool], url: str | None) -> list[dict[str, Any]]:
    """The dead letter and the record of the key after a death, then the record after a redrive that succeeded."""
    told = Told(app)
    found = []
    async with working(app):
        await app.publish(QUEUE, EVENT, idempotency_key=EVENT["idempotencyKey"])
        await told.until("delivery.dead_lettered")
        [letter] = await letters(app, QUEUE)
        records = [await app.backend.claims.get(QUEUE, "courier-x:evt-1")]
        found.append(dead_letter_event(letter) if url is None else stored(url, "dead_letter_events"))
        if url is not None:
            found.append(stored(url, "processed_events"))
        fails[0] = False
        await redrive_all(app, QUEUE)
        await told.until("deliveries.processed")

        async def is_closed() -> bool:
            return [ReviewState.CLOSED] == [each.state for each in await letters(app, QUEUE)]

        await told.until_holds(is_closed, what="the letter is closed")
        records.append(await app.backend.claims.get(QUEUE, "courier-x:evt-1"))
        if url is not None:
            found.append(stored(url, "processed_events"))

            async def says_so() -> bool:
                return "closed" == stored(url, "dead_letter_events")["reviewState"]

            await told.until_holds(says_so, what="the letter itself says that it is closed")
        else:
            found += [processed_event(record) for record in records if record is not None]
    return found


def stored(url: str, collection: str) -> dict[str, Any]:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        [document] = client.get_default_database()[collection].find()
    return dict(document)


def compared(document: dict[str, Any]) -> dict[str, Any]:
    """Every field; of what differs from run to run its form: ids, instants as how far they are from each other."""
    fields = {name: value for name, value in document.items() if name not in OWN}
    if "letterId" in fields:
        fields["letterId"] = re.sub(r"^dl_[0-9a-f]{24}$", "an id", fields["letterId"])
    began = instant(fields.pop("deadLetteredAt", None) or fields.pop("updatedAt"))
    if "expiresAt" in fields:
        fields["expiresAt"] = round((instant(fields["expiresAt"]) - began) / DAY, 3)
    for entry in fields.get("attemptHistory", ()):
        entry["at"] = "before" if timedelta() <= began - instant(entry["at"]) < timedelta(seconds=10) else entry["at"]
        entry["durationMs"] = type(entry["durationMs"])
    return fields


def instant(text: str) -> datetime:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text), text
    return datetime.fromisoformat(text)


async def test_system_a_on_redis_and_mongodb_writes_the_documents_of_sqlite_alone(redis: Redis, tmp_path: Path) -> None:
    await compare_with_sqlite_alone(redis.url, tmp_path)


async def test_an_app_on_rabbitmq_and_mongodb_writes_the_documents_of_sqlite_alone(
    rabbit: Rabbit, tmp_path: Path
) -> None:
    await compare_with_sqlite_alone(rabbit.url, tmp_path)


async def compare_with_sqlite_alone(broker: str, tmp_path: Path) -> None:
    url = database_url()
    on_mongodb, alone = [True], [True]

    found = await documents_of(app_on(broker, url, on_mongodb), on_mongodb, url)
    expected = await documents_of(app_on(f"sqlite:///{tmp_path / 'a.db'}", "", alone), alone, None)

    assert 3 == len(found)
    assert [compared(each) for each in expected] == [compared(each) for each in found]
    assert ["dead_lettered", "processed"] == [each["state"] for each in found[1:]]


async def test_an_app_without_the_driver_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("redrive.stores.mongodb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymongo", None)

    with pytest.raises(MissingExtraError, match=r"redrive\[mongodb\]"):
        await app_on("redis://localhost", "mongodb://localhost/x", [True]).open()


@pytest.mark.parametrize(
    "payload",
    [
        {"$where": 1}, {"a.b": 1}, {"": 1}, [[1, [2]]], {"n": 2**70}, {"s": "a\x00b"}, {"s": "\ud800"}, {"\x00": 1},
        {"deep": json.loads('{"a":' * 80 + "1" + "}" * 80)}, {"big": "x" * 9_000_000},
        {name: name for name in HARD_NAMES},
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
async def test_what_a_server_refuses_never_keeps_a_letter_out(payload: Any) -> None:
    from redrive.runtime.clock import SystemClock
    from redrive.stores.mongodb.letters import MongoLetterStore
    from redrive.stores.mongodb.link import Link
    from redrive.testing.samples import letter, message

    body = json.dumps({**EVENT, "payload": payload}).encode()
    url = database_url()
    store = MongoLetterStore(Link(url), clock=SystemClock())
    await store.open()

    await store.put([letter("before"), letter(message=message(body=body)), letter("after")])

    found = await store.get("dl_1")
    assert found is not None
    assert body == found[0].message.body
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        document = client.get_default_database()["dead_letter_events"].find_one({"letterId": "dl_1"})
    assert document is not None
    assert "evt-1" == document["eventId"]
    assert document.get("payloadSnapshotIsText") or payload == document["payloadSnapshot"]
    await store.close()
